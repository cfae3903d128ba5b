"""Pipeline files: their contents, their errors, and the settings that override them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.pipelines.definitions import (
    BadRecords,
    DefinitionError,
    SinkKind,
    SourceKind,
    StepKind,
    Trigger,
    TriggerKind,
    Watermark,
    check,
    load,
    pipeline,
    plan,
)
from headrace.pipelines.definitions.fields import Problems
from headrace.pipelines.definitions.parts import KEYS, read_pipeline
from headrace.pipelines.definitions.yaml_files import parse_yaml

SHOP = """\
name: shop
settings: {kafka.bootstrap.servers: "localhost:9092", schema.registry.url: "http://localhost:8081"}
spark: {master: "local[2]", conf: {spark.sql.shuffle.partitions: 2}}
checkpoint: work/shop
trigger: 1 second
sources:
  orders:
    topic: orders
    value: json
    schema: "id bigint, customer bigint, at timestamp"
    watermark: {column: at, delay: 10s}
    bad_records: {dead_letter: orders-bad}
    options: {startingOffsets: latest}
  clicks: {topic: [clicks, taps], key: string, metadata: [key, timestamp], bad_records: null, value: avro, options: {value.subject: c}}
  logs: {topic_pattern: "logs-.*"}
  prices: {topic: prices, batch: true, value: string}
  landing: {files: landing, format: csv, schema: "a string", options: {sep: ""}}
  customers: {table: customers.csv, format: csv, schema: "id bigint, name string"}
  regions: {table: shop.regions}
  beat: {format: rate, options: {rowsPerSecond: 1}}
steps:
  enriched:
    sql: |
      SELECT o.*, c.name
      FROM Orders o JOIN customers c ON o.customer = c.id
  cleaned: {python: "steps.py:clean", watermark: {column: at, delay: 1 minute}}
  once: {deduplicate: orders, keys: [id]}
sinks:
  out: {from: enriched, topic: out, key: id, value: name, headers: {a: "'b'"}, timestamp: at, trigger: available-now}
  routed: {from: clicks, topic_expression: "concat('x', key)", options: {deliveryGuarantee: at-least-once}}
  archive: {from: cleaned, parquet: /data/archive, partition_by: day}
  lines: {from: once, files: "s3a://bucket/x", format: json}
  screen: {from: logs, console: true, mode: append}
  nothing: {from: beat, format: noop}
"""
BAD_SHOP = """\
name: bad shop
setings: {a: b}
settings: {kafka.bootstrap.servers: "x:1", kafka.ackz: all}
trigger: availableNow
sources:
  orders: {topik: orders}
  other: {topic: o, value: jsn, schema: "id bigint", watermark: {column: at, delay: soon}}
  third: {topic: t, value: json, schema: "id bigit", metadata: [ofset]}
  fourth: {files: x, table: y}
  my-name: {table: data/x}
  fifth: {topic: t, options: {startingOffset: latest}}
steps:
  per_minute:
    sql: |
      SELECT count(*)
      FROM ordrs
  a: {deduplicate: b, keys: [x]}
  b: {deduplicate: a}
  c: {python: "nope.py:f"}
  d: {python: "steps.py:claen"}
  e: {python: "steps.py:clean", inputs: [orders, third]}
  f: {python: steps}
  g: {sql: "DROP TABLE x"}
  Orders: {sql: "SELECT 1"}
sinks:
  counts: {from: per_minuet, topic: counts, mod: append}
  archive: {from: third, parquet: x, mode: update}
  screen: {from: third, console: maybe}
  nothing: {topic:}
"""


@pytest.fixture
def written(tmp_path: Path) -> Callable[..., Any]:
    (tmp_path / "steps.py").write_text("def clean(orders):\n    return orders\n")

    def write(text: str, name: str = "shop.yaml") -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))
        return path

    return write


def load_problems(path: Path, overrides: Mapping[str, str] | None = None) -> list[str]:
    with pytest.raises(DefinitionError) as error:
        load(path, overrides or {})
    return [str(problem).removeprefix(f"{path.parent}/") for problem in error.value.problems]


def test_every_key_of_a_pipeline_file_is_loaded(written: Callable[..., Any], tmp_path: Path) -> None:
    path = written(SHOP)
    (found,) = load(path)
    assert (found.name, found.origin, found.where.line) == ("shop", path, 1)
    assert (found.spark.master, found.spark.conf) == ("local[2]", {"spark.sql.shuffle.partitions": "2"})
    assert (found.checkpoint, found.trigger) == (f"{tmp_path}/work/shop", Trigger(TriggerKind.INTERVAL, "1 second"))
    orders, clicks = found.sources["orders"], found.sources["clicks"]
    assert (orders.kind, orders.target, orders.is_stream, orders.where.line) == (SourceKind.TOPIC, "orders", True, 7)
    assert (orders.watermark, orders.bad_records) == (
        Watermark("at", "10 seconds"),
        BadRecords("deadletter", "orders-bad"),
    )
    assert (clicks.target, clicks.key, clicks.metadata, clicks.bad_records) == (
        "clicks,taps",
        "string",
        ("key", "timestamp"),
        BadRecords("null"),
    )
    assert found.sources["logs"].is_pattern and not found.sources["prices"].is_stream
    assert (found.sources["landing"].target, found.sources["landing"].options) == (f"{tmp_path}/landing", {"sep": ""})
    assert (found.sources["customers"].kind, found.sources["customers"].is_stream) == (SourceKind.TABLE, False)
    assert (found.sources["regions"].target, found.sources["regions"].format) == ("shop.regions", None)
    assert (found.sources["beat"].kind, found.sources["beat"].format) == (SourceKind.FORMAT, "rate")
    enriched, cleaned = found.steps["enriched"], found.steps["cleaned"]
    assert (enriched.kind, enriched.inputs, enriched.sql_where.line) == (StepKind.SQL, ("orders", "customers"), 24)
    assert (cleaned.python_file, cleaned.python_name, cleaned.inputs) == (tmp_path / "steps.py", "clean", ("orders",))
    assert found.steps["once"].keys == ("id",)
    out = found.sinks["out"]
    assert (out.kind, out.source, out.key, out.value, out.headers) == (
        SinkKind.TOPIC,
        "enriched",
        "id",
        "name",
        {"a": "'b'"},
    )
    assert found.trigger_of(out).kind is TriggerKind.AVAILABLE_NOW and found.is_bounded(out)
    assert found.checkpoint_of(out) == f"{tmp_path}/work/shop/out" and found.query_of(out) == "shop.out"
    assert [found.sinks[name].target for name in ("archive", "lines")] == ["/data/archive", "s3a://bucket/x"]
    assert found.sinks["archive"].partition_by == ("day",) and not found.is_bounded(found.sinks["archive"])
    assert list(found.upstream("enriched")) == ["enriched", "orders", "customers"]
    assert check([found]) == [f"{path}:{line}: no sink uses source {name}" for line, name in [
        (16, "prices"), (17, "landing"), (19, "regions")]]  # fmt: skip


def test_the_plan_describes_sources_steps_and_sinks(written: Callable[..., Any]) -> None:
    text = plan(load(written(SHOP))[0])
    for line in (
        "  trigger     every 1 second",
        "  topic orders at localhost:9092 · value json · bad records: orders-bad · a stream · watermark at, 10 seconds",
        "  topics like logs-.* at localhost:9092 · value raw · a stream",
        "  ← orders, customers · sql SELECT o.*, c.name FROM Orders o JOIN customers c ON o.customer = c.id",
        "  ← enriched · topic out at localhost:9092 · exactly-once · key id · value name · mode append · available-now, then it",
        "  ← clicks · topic by concat('x', key) at localhost:9092 · at-least-once · value json · mode append · every 1 second",
        "  ← cleaned · parquet in /data/archive · partitioned by day · mode append · every 1 second",
    ):
        assert line in text.splitlines(), text


def test_a_minimal_pipeline_has_default_checkpoint_trigger_and_master(
    written: Callable[..., Any], tmp_path: Path
) -> None:
    (found,) = load(written("{name: a, sources: {s: {format: rate}}, sinks: {t: {from: s, console: true}}}"))
    assert found.checkpoint == f"{tmp_path}/.headrace/checkpoints/a"
    assert (found.trigger, found.spark.master, found.settings) == (Trigger(), "local[*]", {})


def test_all_problems_are_reported_at_once_with_their_lines(written: Callable[..., Any]) -> None:
    path = written(BAD_SHOP)
    assert load_problems(path) == [
        "shop.yaml:1: name: 'bad shop' is not made of at most 100 letters, digits, - _ and dots",
        "shop.yaml:2: a pipeline has no key setings (did you mean settings?)",
        "shop.yaml:3: kafka.ackz is no option of topics, of sources or of sinks (did you mean kafka.acks?)",
        "shop.yaml:4: trigger: 'availableNow' is neither a span of time such as 10 seconds, 500 milliseconds or"
        " 1 hour 30 minutes, nor available-now (did you mean available-now?)",
        "shop.yaml:6: source orders needs one of topic, topic_pattern, files, table, format (did you mean topic?)",
        "shop.yaml:7: value: 'jsn' is none of raw, string, json, avro, protobuf (did you mean json?)",
        "shop.yaml:7: delay: 'soon' is not a span of time such as 10 seconds, 500 milliseconds or 1 hour 30 minutes",
        "shop.yaml:8: metadata: 'ofset' is none of key, topic, partition, offset, timestamp, timestampType, headers"
        " (did you mean offset?)",
        "shop.yaml:8: source third: schema: DDL: bigit is no type that can be decoded",
        "shop.yaml:9: source fourth has files and table, of which only one can be",
        "shop.yaml:10: 'my-name' is no name: at most 100 letters, digits and _, as SQL has them",
        "shop.yaml:10: source my-name needs format: one of parquet, orc, json, csv, text, xml, avro",
        "shop.yaml:11: source fifth: startingoffset is no option of format headrace (did you mean startingOffsets?)",
        "shop.yaml:16: step per_minute reads ordrs, which is no source and no step (did you mean Orders?)",
        "shop.yaml:17: steps read each other in a circle: a ← b ← a",
        "shop.yaml:18: step b needs keys: the columns that tell events apart",
        f"shop.yaml:19: python: {path.parent}/nope.py cannot be read: No such file or directory",
        f"shop.yaml:20: python: {path.parent}/steps.py has no function claen (did you mean clean?)",
        "shop.yaml:21: inputs: clean takes 1 input, not 2",
        "shop.yaml:22: python: a file and a function in it are expected, as steps.py:function",
        "shop.yaml:23: sql: a query is expected, which begins with SELECT, WITH, FROM, VALUES or TABLE",
        "shop.yaml:24: there is a source or step orders already, in line 6",
        "shop.yaml:26: sink counts has no key mod (did you mean mode?)",
        "shop.yaml:26: sink counts is from per_minuet, which is no source and no step (did you mean per_minute?)",
        "shop.yaml:27: sink archive: files are written with mode: append, not update",
        "shop.yaml:28: console: true or false is expected, not 'maybe'",
        "shop.yaml:28: console: true is expected",
        "shop.yaml:29: sink nothing needs from: the step or source that it writes",
        "shop.yaml:29: topic: has no value",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("just text", ["shop.yaml:1: a pipeline is a mapping of keys to values, not a text"]),
        ("[1]", ["shop.yaml:1: a pipeline is a mapping of keys to values, not a list"]),
        ("{name: x, sources: {}, sinks: }", ["shop.yaml:1: sources: has no entry", "shop.yaml:1: sinks: has no entry"]),
        (
            "{name: x, sources: {a: 5}, sinks: {b: {from: a, console: true}}}",
            ["source a is a mapping of keys to values"],
        ),
        ("{name: x, spark: {conf: {spark.master: y}}}", ["spark.master is set by the key master, next to conf"]),
        ("{name: x, settings: {kafka.acks: [1]}}", ["kafka.acks: a text is expected, not a list"]),
        ("{name: x, checkpoint: }", ["checkpoint: has no value"]),
        ("{name: x, trigger: continuous}", ["real-time and continuous modes need a source in the JVM"]),
    ],
)
def test_missing_and_mistyped_values_are_reported(written: Callable[..., Any], text: str, expected: list[str]) -> None:
    found = load_problems(written(text))
    for words in expected:
        assert any(words in one for one in found), found


def test_overrides_take_precedence_over_the_file(
    written: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    overrides = {
        "kafka.bootstrap.servers": "other:1",
        "spark.master": "spark://host:7077",
        "spark.executor.memory": "2g",
        "trigger": "available-now",
        "checkpoint": "elsewhere",
    }
    (found,) = load(written(SHOP), overrides)
    assert found.settings["kafka.bootstrap.servers"] == "other:1"
    assert found.spark.master == "spark://host:7077" and found.spark.conf["spark.executor.memory"] == "2g"
    assert all(found.is_bounded(sink) for sink in found.sinks.values())
    assert found.checkpoint == f"{tmp_path}/elsewhere"
    wrong = load_problems(found.origin, {"trigger": "hourly", "kafka.bootstrap.server": "x"})
    assert "kafka.bootstrap.server is no option" in wrong[0] and "trigger: 'hourly' is neither" in wrong[1]


def test_environment_variables_are_substituted_in_settings(
    written: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = """\
        name: a
        settings: {kafka.bootstrap.servers: "${SERVERS}", kafka.client.id: "${CLIENT:-me}"}
        sources: {s: {topic: t}}
        steps: {x: {sql: "SELECT '${SERVERS}' FROM s"}}
        sinks: {o: {from: x, console: true}}
    """
    path = written(text)
    monkeypatch.setenv("SERVERS", "a:1")
    (found,) = load(path)
    assert found.settings == {"kafka.bootstrap.servers": "a:1", "kafka.client.id": "me"}
    assert "${SERVERS}" in found.steps["x"].sql
    monkeypatch.delenv("SERVERS")
    assert load_problems(path)[0] == "shop.yaml:2: the environment has no SERVERS; set it, or write ${SERVERS:-default}"


PYTHON = """\
    from headrace.pipelines.definitions import pipeline

    shop = pipeline("shop", settings={"kafka.bootstrap.servers": "localhost:9092"}, trigger="5 seconds")
    shop.source("orders", topic="orders", value="json", schema="id bigint, at timestamp", bad_records=None,
                watermark={"column": "at", "delay": "10 seconds"})
    shop.sql("minutes", "SELECT window(at, '1 minute') w, count(*) n FROM orders GROUP BY 1")
    shop.deduplicate("once", "orders", ["id"])

    @shop.step
    def large(once):
        return once.where("id > 100")

    @shop.step(name="small", inputs=["once"])
    def other(frame):
        return frame.where("id <= 100")

    for name in ("large", "small", "minutes"):
        shop.sink(name, name, topic=name)
"""


def test_a_pipeline_defined_in_python_is_loaded(written: Callable[..., Any]) -> None:
    path = written(PYTHON, "shop.py")
    (found,) = load(path)
    assert (found.origin, found.where.line, found.trigger.interval) == (path, 3, "5 seconds")
    assert found.sources["orders"].where.line == 4 and found.sources["orders"].bad_records == BadRecords("null")
    assert [found.steps[name].inputs for name in ("minutes", "once", "large", "small")] == [
        ("orders",),
        ("orders",),
        ("once",),
        ("once",),
    ]
    assert found.steps["large"].where.line == 9 and found.steps["small"].function is not None
    assert list(found.sinks) == ["large", "small", "minutes"] and check([found]) == []
    assert f"{path}:large" in plan(found)


def test_problems_in_python_definitions_have_their_line(written: Callable[..., Any]) -> None:
    path = written(
        PYTHON.replace("shop.sink(name, name,", "shop.sink(name, name + 's',").replace(
            "def large(once)", "def large(onse)"
        ),
        "shop.py",
    )
    found = load_problems(path)
    assert found[0] == "shop.py:9: step large reads onse, which is no source and no step (did you mean once?)"
    assert found[1].startswith(
        "shop.py:18: sink large is from larges, which is no source and no step (did you mean large?)"
    )
    assert load_problems(written("import nonsense_of_mine\n", "shop.py")) == [
        "shop.py:1: ModuleNotFoundError: No module named 'nonsense_of_mine'"
    ]
    assert load_problems(written("def f(:\n", "shop.py")) == ["shop.py:1: is no Python: invalid syntax"]
    assert "makes no pipeline" in load_problems(written("x = 1\n", "shop.py"))[0]
    draft = pipeline("twice")
    for _ in range(2):
        draft.source("a", format="rate")
    draft.sink("b", "a", console=True)
    with pytest.raises(DefinitionError, match=r"test_pipelines_definition_files.py:\d+: there is source a already"):
        draft.definition()


def test_a_python_definition_imports_modules_from_its_own_folder(written: Callable[..., Any]) -> None:
    """Both folders have modules of the same names, and none remain in sys.modules."""
    import sys

    for folder in ("a", "b"):
        written(f"name = {folder!r}\n", f"{folder}/names_of_mine.py")
        written("import names_of_mine\n" + dedent(PYTHON).replace('"shop"', "names_of_mine.name"), f"{folder}/shop.py")
    assert [load(Path(written("", "x.py")).parent / folder)[0].name for folder in ("a", "b")] == ["a", "b"]
    assert "names_of_mine" not in sys.modules and "shop" not in sys.modules


def test_loading_a_folder_finds_pipelines_down_to_its_subfolders(written: Callable[..., Any], tmp_path: Path) -> None:
    minimal = "{{name: {}, sources: {{s: {{format: rate}}}}, sinks: {{t: {{from: s, console: true}}}}}}"
    for file, name in [("a.yaml", "a"), ("b/b.yml", "b"), ("b/c/d.yaml", "too-deep"), (".hidden/e.yaml", "hidden")]:
        written(minimal.format(name), file)
    written(PYTHON, "p/shop.py")
    written(PYTHON, "p/test_shop.py")
    assert [found.name for found in load(tmp_path)] == ["a", "b", "shop"]
    written(minimal.format("b"), "z.yaml")
    assert f"there is a pipeline b already: {tmp_path}/b/b.yml:1" in "\n".join(load_problems(tmp_path))


def test_paths_without_a_pipeline_are_reported(tmp_path: Path, written: Callable[..., Any]) -> None:
    assert "does not exist" in load_problems(tmp_path / "none.yaml")[0]
    assert "has no pipelines" in load_problems(tmp_path)[0]
    assert "*.yaml, *.py or a folder is expected" in load_problems(written("", "a.txt"))[0]
    assert (
        "is a definition for spark-pipelines"
        in load_problems(written("name: x\nstorage: y\n", "spark-pipeline.yml"))[0]
    )


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from(["x", "json", "orders", "a.py:f", "1 second", "SELECT * FROM a", ""]),
)
WORDS = """a b topic value schema watermark column delay options files table format metadata sql python inputs deduplicate keys from
    parquet console mode headers bad_records batch partition_by master conf dead_letter file"""
NAMES = st.sampled_from([*KEYS, *WORDS.split()])
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4), max_leaves=15
)
PARTS = st.dictionaries(st.sampled_from(["a", "b", "orders"]), st.dictionaries(NAMES, TREES, max_size=5), max_size=3)


@settings(deadline=None, max_examples=200)
@given(
    st.fixed_dictionaries({}, optional={key: PARTS if key in ("sources", "steps", "sinks") else TREES for key in KEYS})
)
def test_any_yaml_tree_is_a_pipeline_or_raises_definition_error(
    tree: dict[str, dict[str, Any] | list[Any] | str | None],
) -> None:
    path = Path("/nowhere/shop.yaml")
    problems = Problems({})
    (node,) = parse_yaml(yaml.safe_dump(tree), path)
    found = read_pipeline(node, path, problems)
    try:
        check([found])
        plan(found)
    except DefinitionError as error:
        assert all(problem.where.file == path for problem in error.problems)

"""Pipelines in a real Spark on their own node: every kind of source, step and sink, and Spark's errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.pipelines.definitions.building import Built
from headrace.testing.cluster import EmbeddedNode

pytest.importorskip("pyspark", reason="needs the extra spark")
pytest.importorskip("yaml", reason="needs the extra spark")

from headrace.client import Admin, NewTopic, Producer
from headrace.pipelines.definitions import DefinitionError, build, load, pipeline, plan
from headrace.testing.pipelines import PipelineFailed, Record, run_pipeline

pytestmark = pytest.mark.filterwarnings("ignore")  # PySpark's own code emits warnings

END_S_MAX = 90
UNREACHABLE = {"kafka.bootstrap.servers": "127.0.0.1:1"}
PROVIDER = "spark.sql.streaming.stateStore.providerClass"


@pytest.fixture
def write_file(tmp_path: Path) -> Callable[..., Any]:
    def write(text: str, name: str = "shop.yaml") -> Path:
        path = tmp_path / name
        path.write_text(dedent(text))
        return path

    return write


def order(id: int, at: str, customer: int = 1) -> dict[str, Any]:
    return {"id": id, "customer": customer, "at": f"2030-01-01T00:{at}Z"}


def test_windows_joins_and_deduplication_are_written_to_topics_and_files(
    spark: SparkSession, write_file: Callable[..., Any]
) -> None:
    path = write_file("""
        name: shop
        sources:
          orders:
            topic: orders
            value: json
            schema: id bigint, customer bigint, at timestamp
            watermark: {column: at, delay: 10 seconds}
          customers: {table: customers.csv, format: csv, schema: "id bigint, name string"}
        steps:
          once: {deduplicate: orders, keys: [id]}
          enriched: {sql: "SELECT o.id, c.name, date(o.at) day FROM once o JOIN customers c ON o.customer = c.id"}
          per_minute:
            sql: |
              SELECT window(at, '1 minute') w, count(*) n FROM ORDERS GROUP BY 1
        sinks:
          counts: {from: per_minute, topic: counts, key: w.start, headers: {source: "'shop'"}}
          archive: {from: enriched, parquet: out/enriched, partition_by: [day]}
          screen: {from: enriched, console: true}
    """)
    (path.parent / "customers.csv").write_text("1,Ada\n2,Grace\n")
    provider = spark.conf.get(PROVIDER)
    orders = [order(1, "00:01"), order(2, "00:30", 2), order(2, "00:30", 2), order(3, "01:00"), order(4, "09:00", 7)]
    rows = run_pipeline(path, {"orders": orders}, spark=spark, overrides=UNREACHABLE)
    assert [row["n"] for row in rows["counts"]] == [3, 1]
    first = rows.topics["counts"][0]
    assert (first.key, first.headers) == (b"2030-01-01 00:00:00", {"source": b"shop"})
    assert sorted((row["id"], row["name"], str(row["day"])) for row in rows["archive"]) == [
        (1, "Ada", "2030-01-01"),
        (2, "Grace", "2030-01-01"),
        (3, "Ada", "2030-01-01"),
    ]
    assert sorted(row["id"] for row in rows["screen"]) == [1, 2, 3]
    assert not (path.parent / "out").exists() and not (path.parent / ".headrace").exists()
    text = plan(load(path, UNREACHABLE)[0], spark)
    assert "keeps state: aggregation" in text and "keeps state: deduplication" in text
    assert "columns: id bigint, name string, day date" in text
    assert spark.conf.get(PROVIDER) == provider and not spark.catalog.tableExists("orders")


def test_stream_to_stream_joins_and_hopping_windows_give_the_expected_rows(
    spark: SparkSession, write_file: Callable[..., Any]
) -> None:
    """The sources are files, whose rows the test supplies instead."""
    path = write_file("""
        name: joined
        sources:
          orders: {files: o, format: parquet, schema: "id bigint, at timestamp", watermark: {column: at, delay: 1 minute}}
          payments: {files: p, format: csv, schema: "order bigint, paid timestamp", watermark: {column: paid, delay: 1 minute}}
        steps:
          paid:
            sql: |
              SELECT o.id, p.paid FROM orders o LEFT JOIN payments p
              ON o.id = p.order AND p.paid BETWEEN o.at AND o.at + INTERVAL 5 MINUTES
          hops: {sql: "SELECT window.start AS start, count(*) n FROM orders GROUP BY window(at, '10 minutes', '5 minutes')"}
        sinks:
          paid: {from: paid, console: true}
          hops: {from: hops, format: noop, mode: complete}
    """)
    orders = [{"id": id, "at": f"2030-01-01T00:{minute:02}:00Z"} for id, minute in [(1, 0), (2, 4), (3, 59)]]
    payments = [{"order": id, "paid": f"2030-01-01T00:{minute:02}:00Z"} for id, minute in [(1, 2), (2, 30), (9, 59)]]
    rows = run_pipeline(path, {"orders": orders, "payments": payments}, spark=spark)
    assert sorted((row["id"], row["paid"] is not None) for row in rows["paid"]) == [(1, True), (2, False)]
    assert sorted(row["n"] for row in rows["hops"]) == [1, 1, 2, 2]
    with pytest.raises(DefinitionError, match=r"shop.yaml:4: source orders: .*Path does not exist"):
        plan(load(path)[0], spark)
    for name in ("o", "p"):
        (path.parent / name).mkdir()
    assert "keeps state: join of streams" in plan(load(path)[0], spark)


STEPS = """
    from dataclasses import dataclass

    from pyspark.sql import Row
    from pyspark.sql.functions import udf
    from pyspark.sql.streaming import StatefulProcessor

    import words

    @dataclass
    class Total:
        letters: int

    class Counter(StatefulProcessor):
        def init(self, handle):
            self.total = handle.getValueState("total", "letters bigint")

        def handleInputRows(self, key, rows, timer):
            total = Total(self.total.get()[0] if self.total.exists() else 0)
            for row in rows:
                total.letters += row.letters
            self.total.update((total.letters,))
            yield Row(name=key[0], letters=total.letters)

        def close(self):
            pass

    def measured(texts):
        count = udf(lambda text: words.letters(text), "bigint")
        return texts.select("name", count("text").alias("letters"))

    def counted(measured):
        return measured.groupBy("name").transformWithState(
            statefulProcessor=Counter(), outputStructType="name string, letters bigint", outputMode="Update", timeMode="None")
"""


def test_user_functions_and_stateful_processors_run_with_modules_from_their_folder(
    spark: SparkSession, write_file: Callable[..., Any]
) -> None:
    """The sink's topic receives the updates of each batch."""
    write_file("def letters(text):\n    return sum(one.isalpha() for one in text)\n", "words.py")
    write_file(STEPS, "steps.py")
    path = write_file("""
        name: other
        sources: {s: {format: rate}}
        sinks: {o: {from: s, console: true}}
        ---
        name: letters
        settings: {maxOffsetsPerTrigger: 2}
        sources:
          texts: {topic: texts, value: json, schema: "name string, text string"}
        steps:
          measured: {python: "steps.py:measured"}
          counted: {python: "steps.py:counted", inputs: [measured]}
        sinks:
          letters: {from: counted, topic: letters, key: name, value: letters, mode: update}
    """)
    texts = [{"name": name, "text": text} for name, text in [("a", "x-y"), ("b", "!"), ("a", "1z"), ("a", "zz")]]
    rows = run_pipeline(path, {"texts": texts}, spark=spark, overrides=UNREACHABLE, name="letters")
    assert sorted(rows["letters"]) == ["0", "2", "5"] and rows["letters"][-1] == "5"
    assert [record.key for record in rows.topics["letters"] if record.value != b"0"] == [b"a", b"a"]


def test_bad_records_metadata_and_topic_expressions_follow_the_definition(
    spark: SparkSession, write_file: Callable[..., Any]
) -> None:
    path = write_file("""
        name: routes
        sources:
          strict: {topic: events, value: json, schema: "kind string, timestamp bigint", bad_records: {dead_letter: bad}}
          lenient:
            topic: events
            key: string
            value: json
            schema: kind string
            bad_records: null
            metadata: [key, offset]
          plain: {topic: events}
        sinks:
          routed: {from: strict, topic_expression: "concat('of-', kind)", timestamp: timestamp_millis(timestamp)}
          seen: {from: lenient, console: true}
          copied: {from: plain, topic: copy, value: raw}
    """)
    events = [Record({"kind": "a", "timestamp": 5}, key="k"), "junk", Record({"kind": "b", "timestamp": 6})]
    rows = run_pipeline(path, {"events": events}, spark=spark, overrides=UNREACHABLE)
    assert sorted(row["kind"] for row in rows["routed"]) == ["a", "b"]
    assert [record.timestamp_ms for record in rows.topics["of-b"]] == [6]
    assert [record.value for record in rows.topics["bad"]] == [b"junk"]
    assert [(row["kind"], row["key"], row["offset"], row["_error"] is None) for row in rows["seen"]] == [
        ("a", "k", 0, True),
        (None, None, 1, False),
        ("b", None, 2, True),
    ]
    copied = rows.topics["copy"][0]
    assert (copied.key, copied.value) == (b"k", b'{"kind": "a", "timestamp": 5}')
    assert len(rows["copied"]) == 3
    with pytest.raises(PipelineFailed, match="events-0, offset 1: value: "):
        draft = pipeline("strict", settings=UNREACHABLE)
        draft.source("events", topic="events", value="json", schema="kind string")
        draft.sink("out", "events", topic="out")
        run_pipeline(draft, {"events": events}, spark=spark)


@pytest.fixture
def topics(headrace_session_node: EmbeddedNode, request: pytest.FixtureRequest) -> tuple[list[str], str]:
    """Return the names of two topics for this test alone, and the address of their brokers."""
    names = [f"{re.sub(r'[^a-z0-9]', '-', request.node.name)}-{which}" for which in ("in", "out")]
    with Admin({"bootstrap.servers": headrace_session_node.bootstrap}) as admin:
        admin.create_topics([NewTopic(name, 1, 1) for name in names])
    return names, headrace_session_node.bootstrap


def start_in_new_thread(built: Built) -> StreamingQuery | None:
    """Start the query in a thread that has not used Spark before, as the driver's threads do."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(built.start).result()


def test_updates_are_written_once_across_restarts_and_replays(
    spark: SparkSession, write_file: Callable[..., Any], topics: tuple[list[str], str], tmp_path: Path
) -> None:
    (read, wrote), bootstrap = topics
    path = write_file(f"""
        name: updates
        settings: {{kafka.bootstrap.servers: "{bootstrap}"}}
        trigger: available-now
        sources: {{events: {{topic: {read}, value: string}}}}
        steps: {{counts: {{sql: "SELECT value k, count(*) n FROM events GROUP BY 1"}}}}
        sinks: {{out: {{from: counts, topic: {wrote}, key: k, value: n, mode: update}}}}
    """)
    (built,) = build(load(path)[0], spark)
    assert (built.query_name, built.is_batch) == ("updates.out", False)
    for number in range(3):
        with Producer({"bootstrap.servers": bootstrap}) as producer:
            producer.send(read, b"a").result()
        start_in_new_thread(built).awaitTermination(END_S_MAX)
        if number == 1:  # as after a crash between the sink's commit and Spark's: the batch is replayed
            commits = sorted((tmp_path / ".headrace/checkpoints/updates/out/commits").glob("*1*"))
            assert commits
            for path in commits:
                path.unlink()
    options = {"kafka.bootstrap.servers": bootstrap, "kafka.isolation.level": "read_committed", "subscribe": wrote}
    found = spark.read.format("headrace").options(**options, **{"value.format": "string"}).load().orderBy("offset")
    assert [row.value for row in found.collect()] == ["1", "2", "3"]


def test_a_batch_pipeline_writes_its_result_at_each_start(
    spark: SparkSession, write_file: Callable[..., Any], topics: tuple[list[str], str]
) -> None:
    (read, wrote), bootstrap = topics
    path = write_file(f"""
        name: totals
        settings: {{kafka.bootstrap.servers: "{bootstrap}"}}
        sources:
          events: {{topic: {read}, batch: true, value: string}}
          names: {{table: names, format: json}}
        steps: {{totals: {{sql: "SELECT name, count(*) n FROM events JOIN names USING (value) GROUP BY name"}}}}
        sinks:
          out: {{from: totals, files: totals, format: json, mode: overwrite}}
          copy: {{from: events, topic: {wrote}, value: value}}
    """)
    folder = path.parent
    (folder / "names").mkdir()
    (folder / "names" / "1.json").write_text('{"value": "a", "name": "Ada"}\n')
    built, copy = build(load(path)[0], spark)
    assert built.is_batch and copy.is_batch
    for count in (1, 2):
        with Producer({"bootstrap.servers": bootstrap}) as producer:
            producer.send(read, b"a").result()
        assert start_in_new_thread(built) is None and start_in_new_thread(copy) is None
        assert [tuple(row) for row in spark.read.json(str(folder / "totals")).collect()] == [(count, "Ada")]
    written_there = spark.read.format("headrace").options(**{"kafka.bootstrap.servers": bootstrap, "subscribe": wrote})
    assert written_there.load().count() == 1 + 2


@pytest.mark.parametrize(
    ("sql", "sink", "line", "words"),
    [
        (
            "SELECT id,\n                nme FROM orders",
            {},
            7,
            "`nme` cannot be resolved. Did you mean one of the following",
        ),
        ("SELECT id FROM orders WHRE id > 1 x", {}, 6, "Syntax error at or near"),
        ("SELECT * FROM shop.orders", {}, 6, "`shop`.`orders` cannot be found"),
        ("SELECT * FROM orders", {"key": "customr"}, 7, "`customr` cannot be resolved"),
        ("SELECT * FROM orders", {"value": "raw"}, 7, "value: raw needs a column value in large, which has id, name"),
    ],
)
def test_spark_analysis_errors_name_file_and_line(
    spark: SparkSession, write_file: Callable[..., Any], sql: str, sink: dict[str, str], line: int, words: str
) -> None:
    path = write_file(f"""\
        name: wrong
        sources: {{orders: {{topic: orders, value: json, schema: "id bigint, name string"}}}}
        steps:
          large:
            sql: |
                {sql}
        sinks: {{out: {{from: large, topic: out, {", ".join(f"{key}: {value}" for key, value in sink.items())}}}}}
    """)
    (found,) = load(path, UNREACHABLE)
    with pytest.raises(DefinitionError) as refused:
        for built in build(found, spark):
            built.start()
    assert f"shop.yaml:{line}: " in str(refused.value) and words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_errors_in_python_steps_name_file_and_line(spark: SparkSession, write_file: Callable[..., Any]) -> None:
    write_file(
        "def first(orders):\n    return orders.select('nme')\n\n\ndef second(orders):\n    return 5\n", "steps.py"
    )
    path = write_file("""\
        name: wrong
        sources: {orders: {format: rate}}
        steps:
          first: {python: "steps.py:first"}
          second: {python: "steps.py:second"}
        sinks:
          one: {from: first, console: true}
          two: {from: second, console: true}
    """)
    with pytest.raises(DefinitionError) as refused:
        build(load(path)[0], spark)
    (second, first) = refused.value.problems
    assert str(second).endswith("shop.yaml:5: step second: second gave back int, not a DataFrame")
    assert "steps.py:2: step first: " in str(first) and "`nme` cannot be resolved" in str(first)

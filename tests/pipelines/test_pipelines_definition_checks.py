"""Checks of pipelines without Spark, and the options with which Spark reads and writes their topics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from headrace.pipelines.definitions import DefinitionError, check, load, pipeline
from headrace.pipelines.definitions.definition import BadRecords, Pipeline
from headrace.pipelines.definitions.python.files import Draft
from headrace.pipelines.definitions.topic_options import sink_options, source_options
from headrace.pipelines.schemas.options import OnBadRecord
from headrace.pipelines.sink.options import parse_sink_options
from headrace.pipelines.source.options import Mode, parse_options

SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}
JSON: dict[str, Any] = {"value": "json", "schema": "id bigint, at timestamp"}
WATERMARK = {"column": "at", "delay": "10 seconds"}


def draft(name: str = "shop", **keys: Any) -> Draft:
    return pipeline(name, settings=SERVERS, **keys)


def problems(made: Draft) -> list[str]:
    with pytest.raises(DefinitionError) as refused:
        made.definition()
    return [problem.text for problem in refused.value.problems]


def test_grouping_or_deduplicating_a_stream_requires_a_watermark() -> None:
    made = draft()
    made.source("orders", topic="orders", **JSON)
    made.sql("recent", "SELECT * FROM orders WHERE id > 5")
    made.sql("counts", "SELECT id, count(*) FROM recent GROUP BY id")
    made.sink("out", "counts", topic="out")
    made.sink("screen", "counts", console=True, mode="update")
    made.deduplicate("once", "orders", ["id"])
    assert problems(made) == [
        "step counts groups a stream without a watermark: sink out (mode: append) would wait for ever;"
        " give source orders a watermark: {column: …, delay: …}, or the sink mode: update",
        "step once would remember every event for ever; give source orders a watermark: {column: …, delay: …}",
    ]


@pytest.mark.parametrize("how", ["source", "step", "sql", "function", "table", "update"])
def test_no_watermark_is_required_if_present_unneeded_or_undetectable(how: str) -> None:
    made = draft()
    made.source(
        "orders", topic="orders", batch=how == "table", watermark=WATERMARK if how == "source" else None, **JSON
    )
    made.sql("recent", "SELECT * FROM orders", watermark=WATERMARK if how == "step" else None)
    made.sql("marked", f"SELECT * FROM recent {'WATERMARK at DELAY OF INTERVAL 1 SECOND' if how == 'sql' else ''}")
    if how == "function":
        made.step(name="given", inputs=["marked"])(lambda frame: frame)
    made.sql("counts", f"SELECT id, count(*) FROM {'given' if how == 'function' else 'marked'} GROUP BY id")
    made.sink("out", "counts", topic="out", mode="update" if how == "update" else "append")
    assert check([made.definition()]) == []


def test_a_table_joined_with_a_stream_may_be_grouped_without_a_watermark() -> None:
    made = draft()
    made.source("orders", topic="orders", **JSON)
    made.source("customers", table="customers")
    made.sql("joined", "SELECT * FROM orders JOIN (SELECT id, count(*) FROM customers GROUP BY id) USING (id)")
    made.sink("out", "joined", topic="out")
    assert check([made.definition()]) == []


def test_unused_steps_unbounded_joins_and_topic_loops_give_warnings() -> None:
    made = draft()
    made.source("orders", topic="orders", watermark=WATERMARK, **JSON)
    made.source("returns", topic=["returns", "refunds"], **JSON)
    made.sql("joined", "SELECT o.id FROM orders o JOIN returns r ON o.id = r.id")
    made.sql("unused", "SELECT * FROM orders UNION ALL SELECT * FROM returns")
    made.sink("out", "joined", topic="refunds")
    found = [text.partition(": ")[2] for text in check([made.definition()])]
    assert found == [
        "no sink uses step unused",
        "step joined joins streams: returns has no watermark, so it is remembered for ever",
        "sink out writes into the topic refunds that it reads",
    ]


@pytest.mark.parametrize(
    ("batch", "keys", "words"),
    [
        (False, {"parquet": "x", "mode": "complete"}, "files are written with mode: append, not complete"),
        (False, {"topic": "x", "mode": "overwrite"}, "mode: overwrite is for what is no stream, but orders is one"),
        (
            True,
            {"parquet": "x", "mode": "update"},
            "nothing that it writes is a stream: mode: append or overwrite, not update",
        ),
        (False, {"topic": "x", "options": {"deliveryGuarante": "x"}}, "deliveryGuarante is no option of a write"),
        (False, {"topic": "x", "options": {"kafka.acks": "7"}}, "kafka.acks"),
    ],
)
def test_invalid_sink_modes_and_options_are_reported(
    batch: bool, keys: dict[str, dict[str, str] | str], words: str
) -> None:
    made = draft()
    made.source("orders", topic="orders", batch=batch, **JSON)
    made.sink("out", "orders", **keys)
    (found,) = problems(made)
    assert words in found


def test_duplicate_names_checkpoints_and_outputs_are_reported(tmp_path: Path) -> None:
    text = dedent("""\
        name: {name}
        checkpoint: {checkpoint}
        sources: {{s: {{format: rate}}}}
        sinks: {{t: {{from: s, parquet: {output}}}}}
        """)
    for file, name, checkpoint, output in [("a", "x", "c", "o"), ("b", "x", "d", "p"), ("c", "y", "c/", "o/")]:
        (tmp_path / f"{file}.yaml").write_text(text.format(name=name, checkpoint=checkpoint, output=output))
    with pytest.raises(DefinitionError) as refused:
        load(tmp_path)
    assert [str(problem).removeprefix(f"{tmp_path}/") for problem in refused.value.problems] == [
        f"b.yaml:1: there is a pipeline x already: {tmp_path}/a.yaml:1",
        f"c.yaml:1: pipeline y has the checkpoint {tmp_path}/c of pipeline x: {tmp_path}/a.yaml:1",
        f"c.yaml:4: sink t writes into {tmp_path}/o, as t does: {tmp_path}/a.yaml:4",
    ]


def options_of(settings: Mapping[str, str] | None = None, **keys: Any) -> tuple[Pipeline, dict[str, str]]:
    made = pipeline("shop", settings={**SERVERS, **(settings or {})})
    made.source("orders", **keys)
    made.sink("out", "orders", topic="out")
    found = made.definition()
    return found, source_options(found, found.sources["orders"])


def test_a_json_topic_source_gets_the_default_read_options() -> None:
    found, options = options_of(topic="orders", **JSON)
    assert options == {
        **SERVERS,
        "kafka.isolation.level": "read_committed",
        "startingOffsets": "earliest",
        "subscribe": "orders",
        "value.format": "json",
        "value.schema": JSON["schema"],
        "value.columns": "flat",
        "value.prefix": "__",
        "columns": "value",
    }
    assert parse_options(options, Mode.STREAM).topics.names == ("orders",)
    assert sink_options(found, found.sinks["out"]) == {**SERVERS, "topic": "out"}


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"topic": "t"}, {"columns": "value,key,topic,partition,offset,timestamp,timestampType", "value.format": None}),
        ({"topic": "t", "metadata": ["key"]}, {"columns": "value,key"}),
        ({"topic": "t", "key": "string", **JSON}, {"columns": "value,key", "key.format": "string"}),
        ({"topic": "t", "bad_records": None, **JSON}, {"columns": "value,_error", "onBadRecord": "null"}),
        ({"topic": "t", "bad_records": "skip", **JSON}, {"columns": "value", "onBadRecord": "skip"}),
        ({"topic": "t", "options": {"columns": "offset"}, **JSON}, {"columns": "offset", "value.columns": None}),
        (
            {"topic": "t", "options": {"StartingOffsets": "latest"}},
            {"startingOffsets": None, "StartingOffsets": "latest"},
        ),
        ({"topic": "t", "options": {"startingTimestamp": 5}}, {"startingOffsets": None}),
        ({"topic": "t", "batch": True}, {"startingOffsets": None}),
        ({"topic_pattern": "t.*"}, {"subscribePattern": "t.*", "subscribe": None}),
        ({"topic": ["a", "b"]}, {"subscribe": "a,b"}),
        (
            {"topic": "t", "options": {"kafka.isolation.level": "read_uncommitted"}},
            {"kafka.isolation.level": "read_uncommitted"},
        ),
    ],
)
def test_source_keys_determine_the_read_options(keys: dict[str, Any], expected: dict[str, str | None]) -> None:
    _, options = options_of(**keys)
    assert {name: options.get(name) for name in expected} == expected


def test_dead_letters_are_sent_by_the_first_query_that_reads_the_source() -> None:
    made = pipeline("shop", settings=SERVERS)
    made.source("orders", topic="orders", bad_records={"dead_letter": "bad"}, **JSON)
    made.source("returns", topic="returns", bad_records={"dead_letter": "bad"}, **JSON)
    made.source("notes", topic="notes", bad_records="skip", **JSON)
    made.sql("large", "SELECT * FROM orders")
    made.sql("both", "SELECT * FROM large UNION SELECT * FROM returns UNION SELECT * FROM notes")
    for name, source in (("first", "large"), ("second", "both"), ("third", "both"), ("fourth", "notes")):
        made.sink(name, source, topic=name)
    found = made.definition()
    elsewhere = [found.put_aside_elsewhere(sink) for sink in found.sinks.values()]
    assert elsewhere == [set(), {"orders"}, {"orders", "returns"}, set()]
    options = source_options(found, found.sources["orders"], BadRecords("skip"))
    assert options["onBadRecord"] == "skip" and "deadletter.topic" not in options


def test_pipeline_settings_reach_only_the_sources_and_sinks_that_know_them() -> None:
    settings = {
        "schema.registry.url": "http://x:1",
        "KAFKA.ACKS": "all",
        "failOnDataLoss": "false",
        "progressTopic": "p",
    }
    found, options = options_of(settings, topic="orders", value="avro", bad_records={"dead_letter": "bad"})
    assert options["schema.registry.url"] == "http://x:1" and options["failOnDataLoss"] == "false"
    assert "kafka.acks" not in options and "progressTopic" not in options
    assert parse_options(options, Mode.STREAM).decoding.on_bad is OnBadRecord.DEAD_LETTER
    written = sink_options(found, found.sinks["out"])
    assert written == {**SERVERS, "topic": "out", "kafka.acks": "all", "progressTopic": "p"}
    assert parse_sink_options(written).exactly_once
    _, options = options_of(settings, topic="orders", **JSON)
    assert "schema.registry.url" not in options, "a source with a schema of its own asks no registry"

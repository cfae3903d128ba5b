"""Rows and options of the sink: what it accepts, and the errors for everything else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.base.errors import ConfigError
from headrace.pipelines.sink.commands import OnTorn, SinkError
from headrace.pipelines.sink.options import TRANSACTION_TIMEOUT_MS, parse_sink_options
from headrace.pipelines.sink.rows import check_schema, rows_by_topic
from headrace.pipelines.sink.task_writer import Task, task_id

pa = pytest.importorskip("pyarrow")
HEADERS = pa.list_(pa.struct([("key", pa.utf8()), ("value", pa.binary())]))


def schema(**columns: Any) -> Any:
    fields = [
        SimpleNamespace(name=name, dataType=SimpleNamespace(simpleString=lambda text=text: text))
        for name, text in columns.items()
    ]
    return SimpleNamespace(fields=fields)


@pytest.mark.parametrize(
    ("columns", "topic", "words"),
    [
        ({"key": "string"}, "t", "a column value is needed, string or binary; there are key"),
        ({"value": "bigint"}, "t", "column value is bigint; it must be string or binary"),
        ({"value": "binary"}, None, "the option topic or a column topic"),
        ({"value": "binary", "topic": "binary"}, None, "column topic is binary; it must be string"),
        ({"value": "binary", "partition": "bigint"}, "t", "it must be int"),
        (
            {"value": "binary", "headers": "map<string,binary>"},
            "t",
            "it must be array<struct<key:string,value:binary>>",
        ),
        ({"value": "binary", "timestamp": "bigint"}, "t", "it must be timestamp or timestamp_ntz"),
    ],
)
def test_missing_and_mistyped_columns_are_refused(columns: dict[str, str], topic: str | None, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_schema(schema(**columns), topic)


def test_valid_schemas_are_accepted() -> None:
    check_schema(schema(value="string"), "t")
    check_schema(schema(value="string collate UTF8_LCASE", topic="string", offset="bigint"), None)
    check_schema(schema(value="binary", headers="array<struct<key:string,value:binary>>", timestamp="timestamp"), "t")


def test_rows_are_split_by_topic_in_their_order() -> None:
    rows = pa.record_batch(
        {
            "value": pa.array([b"1", None, b"3", b"4"]),
            "topic": pa.array(["a", "b", "a", "a"]),
            "offset": pa.array([1, 2, 3, 4]),
            "timestamp": pa.array([1_500_999, None, 1, 2], pa.timestamp("us", "UTC")),
            "key": pa.array(["k", None, "k", "l"]),
            "headers": pa.array([[{"key": "h", "value": None}], None, [], None], HEADERS),
        }
    )
    found = dict(rows_by_topic(rows, None))
    assert list(found) == ["a", "b"]
    assert found["a"].schema.names == ["key", "value", "headers", "timestamp"]
    assert found["a"].column("value").to_pylist() == [b"1", b"3", b"4"]
    assert found["a"].column("timestamp").cast(pa.int64()).to_pylist() == [1500, 0, 0]
    assert found["b"].column("value").to_pylist() == [None]
    ((topic, all_rows),) = rows_by_topic(rows, "c")
    assert (topic, all_rows.num_rows) == ("c", 4), "the option goes before the column"


def test_the_error_for_a_row_without_a_topic_gives_its_number() -> None:
    rows = pa.record_batch({"value": pa.array(["x", "y"]), "topic": pa.array(["a", None])})
    with pytest.raises(SinkError, match="row 2 of 2 in a batch of Arrow rows has no topic"):
        list(rows_by_topic(rows, None))


@pytest.mark.parametrize("headers", [[[{"key": None, "value": b""}]], [[None]]])
def test_a_header_without_a_key_is_refused(headers: list[list[dict[str, bytes | None] | None]]) -> None:
    rows = pa.record_batch({"value": pa.array(["x"]), "headers": pa.array(headers, HEADERS)})
    with pytest.raises(SinkError, match="a header has no key"):
        list(rows_by_topic(rows, "t"))


SERVERS = {"kafka.bootstrap.servers": "localhost:9092"}


def test_sink_options_default_to_exactly_once() -> None:
    found = parse_sink_options(SERVERS)
    assert found.exactly_once
    assert not found.single
    assert found.choices.on_torn is OnTorn.FAIL
    assert found.producer["transaction.timeout.ms"] == str(TRANSACTION_TIMEOUT_MS)
    assert (
        parse_sink_options({**SERVERS, "KAFKA.Transaction.Timeout.ms": "5000"}).producer["transaction.timeout.ms"]
        == "5000"
    )
    assert "transaction.timeout.ms" not in parse_sink_options({**SERVERS, "twoPhaseCommit": "true"}).producer
    assert parse_sink_options({**SERVERS, "WRITERS": "1", "ontornbatch": "skip"}).single


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"kafka.bootstrap.servers": " "}, "kafka.bootstrap.servers must be set"),
        (
            {"onTornBatches": "fail"},
            "onTornBatches is no option of a write to format headrace .did you mean onTornBatch",
        ),
        ({"onTornBatch": "never"}, "onTornBatch"),
        ({"deliveryGuarantee": "at-most-once"}, "deliveryGuarantee"),
        ({"writers": "2"}, "writers"),
        ({"writeId": "a.b"}, "writeId=.a.b. is not made of"),
        ({"writeId": "x" * 200}, "writeId"),
        ({"deliveryGuarantee": "at-least-once", "writeId": "x"}, "are for deliveryGuarantee=exactly-once"),
        ({"kafka.transactional.id": "x"}, "kafka.transactional.id cannot be set: each task has one"),
        ({"kafka.acks": "1"}, "kafka.acks=1 is not allowed"),
        ({"kafka.enable.idempotence": "false"}, "kafka.enable.idempotence=false does not go with"),
        ({"kafka.linger.ms": "soon"}, "kafka.linger.ms"),
    ],
)
def test_invalid_sink_options_are_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse_sink_options({**SERVERS, **options})


def test_at_least_once_accepts_weaker_acks() -> None:
    assert (
        parse_sink_options({**SERVERS, "deliveryGuarantee": "at-least-once", "kafka.acks": "1"}).client["acks"] == "1"
    )


def test_task_attempts_have_distinct_but_few_transactional_ids() -> None:
    def name(**more: Any) -> str:
        task = Task(sink="query", run="run12345", batch=0, partition=3, attempt=0, attempt_id=100)
        return task_id("p", task._replace(**more))

    assert name().startswith("p:query.run12345.3.0.")
    assert len({name(attempt=attempt) for attempt in range(4)}) == 4
    assert len({name(batch=batch, attempt_id=100 + 2 * batch) for batch in range(1000)}) <= 16
    assert name(sink=None).startswith("p:run12345.run12345.")

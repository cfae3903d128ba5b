"""Decoding in a real Spark: batch and stream, with a registry, and bad records in a dead-letter topic."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.pipelines.registry_stub import RegistryStub, framed
from tests.pipelines.topic_writer import TopicWriter

from headrace.testing.cluster import EmbeddedNode

pytest.importorskip("pyspark", reason="needs the extra spark")
pytest.importorskip("fastavro", reason="needs the extra spark")

import fastavro

pytestmark = pytest.mark.filterwarnings("ignore")  # PySpark's own code emits warnings

SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "tags", "type": {"type": "map", "values": {"type": "array", "items": "string"}}},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "money", "type": ["null", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}]},
        {"name": "inner", "type": ["null", {"type": "record", "name": "I", "fields": [{"name": "q", "type": "int"}]}]},
    ],
}


def encoded(**value: Any) -> bytes:
    data = io.BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(SCHEMA), value)
    return data.getvalue()


@pytest.fixture
def orders(headrace_session_node: EmbeddedNode, request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """Yield options to read a topic whose two partitions have three orders, a bad record and a tombstone each."""
    topics = TopicWriter(headrace_session_node.bootstrap)
    topic = topics.create(request.node.name, 2)
    topics.create(f"{topic}-bad")
    with RegistryStub().serving() as stub:
        stub.put(1, SCHEMA, f"{topic}-value")
        for partition in range(2):
            values = [
                encoded(id=partition * 10 + n, tags={"a": ["x", "y"]}, at=1500, money=None, inner={"q": n})
                for n in range(3)
            ]
            bad_and_none = [(b"k", b"junk junk"), (b"k", None)]
            topics.put(topic, partition, [(b"k", framed(1, one)) for one in values] + bad_and_none)
        yield {
            "kafka.bootstrap.servers": headrace_session_node.bootstrap,
            "subscribe": topic,
            "startingOffsets": "earliest",
            "key.format": "string",
            "value.format": "avro",
            "schema.registry.url": stub.url,
        }


def test_a_batch_read_decodes_a_struct_and_reports_bad_records(spark: SparkSession, orders: dict[str, str]) -> None:
    frame = spark.read.format("headrace").options(**orders, onBadRecord="null").load()
    assert frame.schema["value"].dataType.simpleString() == (
        "struct<id:bigint,tags:map<string,array<string>>,at:timestamp,money:decimal(9,2),inner:struct<q:int>>"
    )
    columns = ("key", "value.id", "value.tags['a'][1] y", "value.inner.q q", "unix_millis(value.at) at", "_error")
    found = sorted(frame.selectExpr(*columns).collect(), key=lambda row: -1 if row.id is None else row.id)
    assert [row.id for row in found] == [None] * 4 + [0, 1, 2, 10, 11, 12]
    assert tuple(found[-1])[:5] == ("k", 12, "y", 2, 1500)
    assert sorted("first byte" in (row._error or "") for row in found) == [False] * 8 + [True] * 2

    with pytest.raises(Exception, match=r"offset 3: value: its first byte is 106, not 0") as failed:
        spark.read.format("headrace").options(**orders).load().collect()
    assert "Traceback" not in str(failed.value)


def test_a_stream_decodes_flat_columns_and_sends_dead_letters(
    spark: SparkSession, orders: dict[str, str], headrace_session_node: EmbeddedNode, tmp_path: Path
) -> None:
    bad = f"{orders['subscribe']}-bad"
    flat = {**orders, "value.columns": "flat", "onBadRecord": "deadletter", "deadletter.topic": bad}
    query = (
        spark.readStream.format("headrace")
        .options(**flat)
        .load()
        .select("id", "inner", "partition", "offset")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(tmp_path / "rows"))
    )
    query.awaitTermination()
    rows = spark.read.parquet(str(tmp_path / "rows")).collect()
    assert sorted(row.id for row in rows if row.id is not None) == [0, 1, 2, 10, 11, 12]
    assert sorted((row.partition, row.offset) for row in rows if row.id is None) == [(0, 4), (1, 4)], "tombstones"
    letters = {"kafka.bootstrap.servers": headrace_session_node.bootstrap, "subscribe": bad, "value.format": "string"}
    found = spark.read.format("headrace").options(**letters).load().collect()
    assert [row.value for row in found] == ["junk junk"] * 2

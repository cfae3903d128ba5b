"""Decoded rows without a SparkSession: columns, pruning, and the three ways to handle a bad record."""

from __future__ import annotations

import io
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.pipelines.registry_stub import RegistryStub, framed
from tests.pipelines.topic_writer import TopicWriter

from headrace.testing.cluster import EmbeddedNode

pytest.importorskip("pyspark", reason="needs the extra spark")
pytest.importorskip("fastavro", reason="needs the extra spark")

import fastavro
from pyspark.sql.types import IntegerType, LongType, StructField, StructType

from headrace.pipelines.failures import SourceError
from headrace.pipelines.schemas import dead_letters
from headrace.pipelines.source.batch_source import ReadPartition, row_reader, source_schema
from headrace.pipelines.source.options import Mode
from headrace.pipelines.source.reading import TaskRange

DDL = "id bigint, name string"


@pytest.fixture
def topics(headrace_session_node: EmbeddedNode) -> TopicWriter:
    return TopicWriter(headrace_session_node.bootstrap)


@pytest.fixture
def topic(topics: TopicWriter, request: pytest.FixtureRequest) -> str:
    return topics.create(request.node.name.replace("[", "-").replace("]", ""))


@pytest.fixture
def read(headrace_session_node: EmbeddedNode) -> Callable[..., Any]:
    def rows(
        topic: str, end: int, schema: StructType | None = None, partition: int = 0, **options: Any
    ) -> list[dict[str, Any]]:
        named = {name.replace("__", "."): value for name, value in options.items()}
        named = {"kafka.bootstrap.servers": headrace_session_node.bootstrap, "subscribe": topic, **named}
        reader = pickle.loads(pickle.dumps(row_reader(named, schema or source_schema(named), Mode.BATCH)))
        batches = list(reader.read(ReadPartition(TaskRange(topic, partition, 0, end))))
        return [row for batch in batches for row in batch.to_pylist()]

    return rows


def schema_text(**options: Any) -> str:
    named = {name.replace("__", "."): value for name, value in options.items()}
    return source_schema({"kafka.bootstrap.servers": "x:1", "subscribe": "t", **named}).simpleString()


METADATA_COLUMNS = "topic:string,partition:int,offset:bigint,timestamp:timestamp,timestampType:int"


def test_the_spark_schema_follows_the_decoding_options() -> None:
    struct = {"value__format": "json", "value__schema": DDL}
    assert schema_text(**struct) == f"struct<key:binary,value:struct<id:bigint,name:string>,{METADATA_COLUMNS}>"
    assert schema_text(key__format="string", **struct).startswith("struct<key:string,value:struct")
    flat = {**struct, "value__columns": "flat"}
    assert schema_text(**flat) == f"struct<key:binary,id:bigint,name:string,{METADATA_COLUMNS}>"
    assert schema_text(**flat, columns="NAME,offset") == "struct<name:string,offset:bigint>"
    assert schema_text(**flat, columns="offset,value") == "struct<offset:bigint,id:bigint,name:string>"
    assert schema_text(**flat, onBadRecord="null", columns="id,_error") == "struct<id:bigint,_error:string>"
    assert schema_text(**struct, onBadRecord="null").endswith("timestampType:int,_error:string>")
    own = {"value__format": "json", "value__schema": "value int, x int", "value__columns": "flat"}
    assert schema_text(**own, columns="value") == "struct<value:int,x:int>"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"value__schema": "offset bigint", "value__columns": "flat"},
            "there is a column offset already; set value.prefix",
        ),
        ({"value__schema": DDL, "columns": "id"}, "columns: 'id' is none; there are key, value"),
        ({"value__schema": DDL, "value__columns": "flat", "columns": "value,id"}, "twice"),
        ({"value__schema": "a blob"}, "the schema of value.format=json: DDL: blob is no type"),
        ({"value__schema__file": "/nowhere/x"}, "value.schema.file=/nowhere/x cannot be read"),
    ],
)
def test_invalid_schemas_and_columns_raise_source_error(options: dict[str, str], words: str) -> None:
    with pytest.raises(SourceError) as refused:
        schema_text(value__format="json", **options)
    assert words in str(refused.value)


def test_a_prefix_avoids_column_name_conflicts() -> None:
    found = schema_text(value__format="json", value__schema="offset bigint", value__columns="flat", value__prefix="v_")
    assert "v_offset:bigint" in found


def test_a_users_schema_may_omit_fields_but_not_change_types(
    read: Callable[..., Any], topics: TopicWriter, topic: str, tmp_path: Path
) -> None:
    topics.put(topic, 0, [(b"k", b'{"id":1,"name":"a"}'), (b"k", None)])
    path = tmp_path / "schema.ddl"
    path.write_text(DDL)
    schema = StructType(
        [StructField("value", StructType([StructField("id", LongType())])), StructField("offset", LongType())]
    )
    found = read(topic, 2, schema, value__format="json", value__schema__file=str(path))
    assert found == [{"value": {"id": 1}, "offset": 0}, {"value": None, "offset": 1}]
    wrong = StructType([StructField("value", StructType([StructField("id", IntegerType())]))])
    with pytest.raises(SourceError, match="column value is struct<id:bigint,name:string>, not struct<id:int>"):
        read(topic, 2, wrong, value__format="json", value__schema=DDL)


BAD = [(b"k", b'{"id":1}'), (b"\xff", b"{", 1500, (("h", b"1"), ("h", None))), (None, None), (b"k", b"{}")]


def test_a_bad_record_fails_the_task_with_its_offset(read: Callable[..., Any], topics: TopicWriter, topic: str) -> None:
    topics.put(topic, 0, BAD)
    with pytest.raises(SourceError) as failed:
        read(topic, 4, value__format="json", value__schema=DDL)
    assert f"{topic}-0, offset 1: value: " in str(failed.value)
    assert "`bad_records:` of the source, skip, null or {dead_letter: TOPIC}" in str(failed.value)
    assert "\n" not in str(failed.value)
    # Columns that are not read are not decoded.
    assert len(read(topic, 4, value__format="json", value__schema=DDL, columns="offset")) == 4


def test_a_bad_record_becomes_null_with_its_error(read: Callable[..., Any], topics: TopicWriter, topic: str) -> None:
    topics.put(topic, 0, BAD)
    found = read(topic, 4, key__format="string", value__format="json", value__schema=DDL, onBadRecord="null")
    assert [row["value"] for row in found] == [{"id": 1, "name": None}, None, None, {"id": None, "name": None}]
    assert [row["key"] for row in found] == ["k", None, None, "k"]
    assert [row["_error"] is None for row in found] == [True, False, True, True]
    assert "key: it is no UTF-8" in found[1]["_error"] and "value: " in found[1]["_error"]
    flat = read(
        topic,
        4,
        value__format="json",
        value__schema=DDL,
        value__columns="flat",
        onBadRecord="null",
        columns="id,_error",
    )
    assert [row["id"] for row in flat] == [1, None, None, None]


def test_a_bad_record_is_sent_unchanged_to_the_dead_letter_topic(
    read: Callable[..., Any], topics: TopicWriter, topic: str
) -> None:
    topics.put(topic, 0, BAD)
    target = topics.create(f"{topic}-bad")
    options = {"value__format": "json", "value__schema": DDL, "columns": "value,offset"}
    found = read(topic, 4, **options, onBadRecord="deadletter", deadletter__topic=target)
    assert [row["offset"] for row in found] == [0, 2, 3]
    (letter,) = read(target, 1, includeHeaders="true")
    assert (letter["key"], letter["value"]) == (b"\xff", b"{")
    headers = [(one["key"], one["value"]) for one in letter["headers"]]
    assert headers[:2] == [("h", b"1"), ("h", None)]
    origin = dict(headers[2:])
    assert origin.pop(dead_letters.ERROR).startswith(b"value: ")
    assert origin == {
        dead_letters.TOPIC: topic.encode(),
        dead_letters.PARTITION: b"0",
        dead_letters.OFFSET: b"1",
        dead_letters.TIMESTAMP: b"1500",
    }


def test_a_bad_record_is_skipped_if_configured(
    read: Callable[..., Any], topics: TopicWriter, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    topics.put(topic, 0, BAD)
    found = read(topic, 4, value__format="json", value__schema=DDL, columns="value,offset", onBadRecord="skip")
    assert [row["offset"] for row in found] == [0, 2, 3] and "1 of 4 records cannot be decoded" in caplog.text


def test_a_dead_letter_that_cannot_be_written_fails_the_task(
    read: Callable[..., Any], topics: TopicWriter, topic: str
) -> None:
    topics.put(topic, 0, [(b"k", b"{" * 3000)])
    target = topics.create(f"{topic}-bad", max_message_bytes="1000")
    with pytest.raises(SourceError, match=f"{topic}-0, offset 0: bad records cannot be put into {target}"):
        read(topic, 1, value__format="json", value__schema=DDL, onBadRecord="deadletter", deadletter__topic=target)


def test_avro_schemas_come_from_the_registry(read: Callable[..., Any], topics: TopicWriter, topic: str) -> None:
    schema = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "int"}]}
    data = io.BytesIO()
    fastavro.schemaless_writer(data, schema, {"id": 7})
    with RegistryStub().serving() as stub:
        stub.put(1, schema, f"{topic}-value")
        stub.put(2, json.dumps("int"), f"{topic}-key")
        topics.put(topic, 0, [(framed(2, b"\x08"), framed(1, data.getvalue()))])
        options = {"key__format": "avro", "value__format": "avro", "schema__registry__url": stub.url}
        assert read(topic, 1, **options, columns="key,value") == [{"key": 4, "value": {"id": 7}}]
        stub.put(3, "{}", "other", kind="JSON")
        with pytest.raises(SourceError, match="the schema of subject other is JSON"):
            read(topic, 1, **options, value__subject="other")
    with pytest.raises(SourceError, match="the schema registry gave no response for subject"):
        read(topic, 1, **options, schema__registry__timeout__ms="100")


def test_framed_json_is_decoded_without_the_writer_schema(
    read: Callable[..., Any], topics: TopicWriter, topic: str
) -> None:
    with RegistryStub().serving() as stub:
        schema = {"type": "object", "properties": {"id": {"type": "integer"}}}
        stub.put(1, schema, f"{topic}-value", kind="JSON")
        topics.put(topic, 0, [(None, framed(1, b'{"id":1}')), (None, b'{"id":2}'), (None, framed(9, b'{"id":3}'))])
        options = {"value__format": "json", "schema__registry__url": stub.url, "onBadRecord": "null"}
        found = read(topic, 3, **options, columns="value,_error")
        assert [row["value"] for row in found] == [{"id": 1}, None, {"id": 3}]
        assert "first byte is 123" in found[1]["_error"]

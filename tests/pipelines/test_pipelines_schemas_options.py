"""Decoding options, and schemas given as DDL, Spark's JSON or JSON Schema."""

from __future__ import annotations

import json
from types import ModuleType
from typing import Any

import pytest
from pyspark.sql.types import DataType

from headrace.base.errors import ConfigError
from headrace.pipelines.schemas.options import Format, OnBadRecord
from headrace.pipelines.source.options import SourceOptions, parse_options

URL = "http://registry.example:8081"


def parsed(**options: Any) -> SourceOptions:
    named = {name.replace("__", "."): value for name, value in options.items()}
    return parse_options({"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders", **named})


def test_by_default_nothing_is_decoded() -> None:
    assert parsed().decoding is None
    assert parsed(value__format="raw", schema__registry__url=URL).decoding is None


def test_decoding_options_are_parsed() -> None:
    decoding = parsed(
        key__format="string",
        VALUE__FORMAT="avro",
        schema__registry__url=f"{URL}/, https://other.example",
        schema__registry__basic__auth__user__info="me:secret",
        onBadRecord="deadletter",
        deadletter__topic="orders-bad",
        value__columns="flat",
    ).decoding
    key, value = decoding.sides
    assert (key.format, key.framed) == (Format.STRING, False)
    assert (value.format, value.subject, value.framed, value.flat) == (Format.AVRO, "orders-value", True, True)
    assert decoding.registry.urls == (URL, "https://other.example")
    assert decoding.registry.user_info == "me:secret"
    assert (decoding.on_bad, decoding.dead_letter_topic) == (OnBadRecord.DEAD_LETTER, "orders-bad")
    inline = parsed(value__format="json", value__schema="a int").decoding.sides[0]
    assert (inline.subject, inline.framed) == (None, False)
    unframed = parsed(value__format="json", value__framing="none", schema__registry__url=URL).decoding.sides[0]
    assert not unframed.framed


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"value__format": "xml"}, "value.format='xml' is not allowed: it must be one of raw, string, json"),
        ({"value__format": "avro"}, "needs a schema: value.schema, value.schema.file or schema.registry.url"),
        ({"value__schema": "a int"}, "value.schema has no meaning with value.format=raw"),
        ({"value__format": "string", "value__columns": "flat"}, "needs a value.format with fields"),
        ({"value__format": "json", "value__schema": "a int", "value__schema__file": "x"}, "only one of"),
        (
            {"value__format": "json", "value__schema": "a int", "value__framing": "confluent"},
            "needs schema.registry.url",
        ),
        ({"value__format": "json", "value__schema": "a int", "value__prefix": "v_"}, "without value.columns=flat"),
        ({"key__format": "avro", "schema__registry__url": "registry:8081"}, "is no address; write http://host:port"),
        ({"schema__registry__url": "http://me:secret@host"}, "must not hold a password"),
        ({"schema__registry__url": URL, "schema__registry__basic__auth__user__info": "me"}, "must be user:password"),
        ({"onBadRecord": "deadletter"}, "needs deadletter.topic"),
        ({"deadletter__topic": "bad"}, "without onBadRecord=deadletter"),
        ({"onBadRecord": "deadletter", "deadletter__topic": "orders"}, "would come back for ever"),
        ({"value__formt": "json"}, "did you mean value.format?"),
    ],
)
def test_invalid_decoding_options_are_refused_without_showing_secrets(options: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parsed(**options)
    assert words in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_subject_is_required_when_several_topics_are_read() -> None:
    with pytest.raises(ConfigError, match=r"value\.subject must be set"):
        parsed(subscribe="a,b", value__format="avro", schema__registry__url=URL)
    both = parsed(subscribe="a,b", value__format="avro", schema__registry__url=URL, value__subject="s").decoding
    assert both.sides[0].subject == "s"


def types() -> ModuleType:
    pytest.importorskip("pyspark", reason="needs the extra spark")
    from headrace.pipelines.schemas import spark_types

    return spark_types


@pytest.mark.parametrize(
    ("ddl", "simple"),
    [
        ("a int", "struct<a:int>"),
        ("a: bigint, `b c` STRING NOT NULL COMMENT 'it''s'", None),
        (
            "a TINYINT, b SmallInt, c float, d double, e boolean",
            "struct<a:tinyint,b:smallint,c:float,d:double,e:boolean>",
        ),
        (
            "struct<x: array<struct<y: map<string, decimal(10,2)>>>>",
            "struct<x:array<struct<y:map<string,decimal(10,2)>>>>",
        ),
        ("t timestamp, n timestamp_ntz, d date, b binary", "struct<t:timestamp,n:timestamp_ntz,d:date,b:binary>"),
        ("d decimal, e dec(5), s varchar(3)", "struct<d:decimal(10,0),e:decimal(5,0),s:string>"),
    ],
)
def test_ddl_schemas_are_parsed(ddl: str, simple: str | None) -> None:
    found = types().types_from_ddl(ddl)
    if simple is None:
        assert found.names == ["a", "b c"]
    else:
        assert found.simpleString() == simple


@pytest.mark.parametrize(
    "ddl",
    [
        "",
        "a",
        "a int,",
        "a array<int",
        "a int b",
        "a blob",
        "a decimal(99,1)",
        "a decimal(x)",
        "a int, A int",
        "a ~",
        "struct<>",
    ],
)
def test_invalid_ddl_raises_config_error(ddl: str) -> None:
    with pytest.raises(ConfigError):
        types().types_from_ddl(ddl)
    with pytest.raises(ConfigError):
        types().types_from_ddl("a " + "array<" * 100_000)


def json_types(
    schema: dict[str, Any] | str,
    references: list[tuple[str, str]] | tuple[Any, ...] = (),
) -> DataType:
    types()
    from headrace.pipelines.schemas.decoding import _json_types

    return _json_types(schema if isinstance(schema, str) else json.dumps(schema), references)


def test_json_schemas_map_to_spark_types() -> None:
    schema = {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "price": {"type": ["number", "null"]},
            "name": {"oneOf": [{"type": "null"}, {"type": "string"}]},
            "at": {"type": "string", "format": "date-time"},
            "day": {"type": "string", "format": "date"},
            "raw": {"type": "string", "contentEncoding": "base64"},
            "kind": {"enum": ["a", "b"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "extra": {"type": "object", "additionalProperties": {"type": "integer"}},
            "address": {"$ref": "#/$defs/address"},
            "other": {"$ref": "other.json"},
        },
        "$defs": {"address": {"type": "object", "properties": {"city": {"type": "string"}}}},
    }
    other = json.dumps({"type": "object", "properties": {"ok": {"type": "boolean"}}})
    assert json_types(schema, [("other.json", other)]).simpleString() == (
        "struct<id:bigint,price:double,name:string,at:timestamp,day:date,raw:binary,kind:string,tags:array<string>,"
        "extra:map<string,bigint>,address:struct<city:string>,other:struct<ok:boolean>>"
    )


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {"type": ["string", "integer"]},
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        {"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}},
        {"type": "object", "properties": {"a": {"anyOf": [{"type": "string"}, {"type": "integer"}]}}},
        {"type": "array"},
        '{"type": ',
        '{"type":"struct","fields":3}',
        '{"type":"struct","fields":[{"name":"a","type":"nothing","nullable":true,"metadata":{}}]}',
    ],
)
def test_a_json_schema_without_a_matching_spark_type_is_refused(
    schema: dict[str, Any] | str,
) -> None:
    with pytest.raises(ConfigError):
        json_types(schema)


def test_schemas_in_sparks_json_format_are_parsed() -> None:
    types()
    from pyspark.sql.types import ArrayType, IntegerType, StructField, StructType

    schema = StructType([StructField("a", ArrayType(IntegerType(), containsNull=False), nullable=False)])
    assert json_types(schema.json()).simpleString() == "struct<a:array<int>>"
    assert json_types(schema.json())["a"].nullable  # type: ignore[index]

"""Decoding Avro values: Spark's types, evolved schemas and hostile bytes."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pipelines.registry_stub import RegistryStub, framed

from headrace.pipelines.schemas.columns import Decoded

pytest.importorskip("pyspark", reason="needs the extra spark")
pytest.importorskip("fastavro", reason="needs the extra spark")

import fastavro
import pyarrow as pa

from headrace.base.errors import ConfigError
from headrace.pipelines.schemas.avro_values import AvroDecoder
from headrace.pipelines.schemas.options import RegistrySettings
from headrace.pipelines.schemas.registry_client import RegistryClient, RegistryError


def record(*fields: Any, name: str = "shop.Order") -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [
            {"name": one, "type": kind, **more} for one, kind, *rest in fields for more in (rest[0] if rest else {},)
        ],
    }


def encoded(schema: dict[str, Any] | str, value: dict[str, Any] | int) -> bytes:
    data = io.BytesIO()
    fastavro.schemaless_writer(data, fastavro.parse_schema(schema), value)
    return data.getvalue()


def decoder(
    schema: Any,
    registry: RegistryClient | None = None,
    references: tuple[Any, ...] | list[dict[str, list[dict[Any, Any]] | str]] = (),
) -> AvroDecoder:
    return AvroDecoder(json.dumps(schema), [json.dumps(one) for one in references], registry)


def decoded(schema: dict[str, list[dict[str, dict[Any, Any] | list[Any] | str]] | str] | str, *values: Any) -> Decoded:
    return decoder(schema).decode(pa.array(values, pa.binary()))


ALL = record(
    ("b", "boolean"),
    ("i", "int"),
    ("l", "long"),
    ("f", "float"),
    ("d", "double"),
    ("y", "bytes"),
    ("s", "string"),
    ("u", {"type": "string", "logicalType": "uuid"}),
    ("e", {"type": "enum", "name": "E", "symbols": ["X", "Y"]}),
    ("x", {"type": "fixed", "name": "F", "size": 2}),
    ("day", {"type": "int", "logicalType": "date"}),
    ("ms", {"type": "long", "logicalType": "timestamp-millis"}),
    ("us", {"type": "long", "logicalType": "timestamp-micros"}),
    ("local", {"type": "long", "logicalType": "local-timestamp-millis"}),
    ("money", {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}),
    ("a", {"type": "array", "items": ["null", "int"]}),
    ("m", {"type": "map", "values": {"type": "array", "items": "string"}}),
    ("r", ["null", record(("q", "int"), name="shop.Inner")]),
    ("again", ["null", "shop.Inner"]),
    ("n", ["int", "long"]),
    ("n2", ["null", "float", "double"]),
)
VALUE = {
    "b": True, "i": -1, "l": 2**40, "f": 0.5, "d": 1e300, "y": b"\xff", "s": "ö", "u": "5c1e3e0e-0000-0000-0000-000000000000",
    "e": "Y", "x": b"ab", "day": date(2024, 2, 29), "ms": datetime(2024, 1, 1, tzinfo=UTC), "us": datetime(1960, 1, 1, tzinfo=UTC),
    "local": datetime(2024, 1, 1), "money": Decimal("-12.34"), "a": [1, None], "m": {"k": ["v"]}, "r": {"q": 7}, "again": None,
    "n": 5, "n2": 2.5,
}  # fmt: skip


def test_avro_types_map_to_the_same_types_as_in_sparks_avro_source() -> None:
    found = decoded(ALL, encoded(ALL, VALUE), None)
    assert not found.bad
    assert decoder(ALL).spark_type.simpleString() == (
        "struct<b:boolean,i:int,l:bigint,f:float,d:double,y:binary,s:string,u:string,e:string,x:binary,day:date,ms:timestamp,"
        "us:timestamp,local:timestamp_ntz,money:decimal(9,2),a:array<int>,m:map<string,array<string>>,r:struct<q:int>,"
        "again:struct<q:int>,n:bigint,n2:double>"
    )
    assert found.column.to_pylist() == [{**VALUE, "m": [("k", ["v"])]}, None]


A = record(("q", "int"), name="shop.A")
ENUM = {"type": "enum", "name": "shop.E", "symbols": ["X"]}


def test_a_union_of_several_types_becomes_a_struct_of_members() -> None:
    schema = record(
        ("u", ["null", "string", A, record(("q", "int"), name="shop.B"), ENUM, {"type": "map", "values": "int"}]),
        ("o", ["null", "shop.A"]),
    )
    assert decoder(schema).spark_type["u"].dataType.simpleString() == (  # type: ignore[index]
        "struct<member0:string,member1:struct<q:int>,member2:struct<q:int>,member3:string,member4:map<string,int>>"
    )
    values = [None, "x", ("shop.A", {"q": 1}), ("shop.B", {"q": 2}), ("shop.E", "X"), {"k": 3}]
    found = decoded(schema, *(encoded(schema, {"u": one, "o": {"q": 9}}) for one in values))
    assert not found.bad
    chosen = [
        None if one["u"] is None else {name: value for name, value in one["u"].items() if value is not None}
        for one in found.column.to_pylist()
    ]
    assert chosen == [
        None, {"member0": "x"}, {"member1": {"q": 1}}, {"member2": {"q": 2}}, {"member3": "X"}, {"member4": [("k", 3)]}
    ]  # fmt: skip
    assert [one["o"] for one in found.column.to_pylist()] == [{"q": 9}] * 6


def test_a_value_written_without_a_union_is_matched_to_a_member_by_its_fields(
    registry: RegistryClient, stub: RegistryStub
) -> None:
    other = record(("z", "int"), name="shop.B")
    stub.put(1, record(("u", other)))
    stub.put(2, record(("u", "int")))
    reader = record(("u", ["null", A, other, "long"]))
    values = [framed(1, encoded(record(("u", other)), {"u": {"z": 1}})), framed(2, b"\x06")]
    found = decoder(reader, registry).decode(pa.array(values, pa.binary()))
    assert not found.bad
    assert [one["u"]["member1"] for one in found.column.to_pylist()] == [{"z": 1}, None]
    assert [one["u"]["member2"] for one in found.column.to_pylist()] == [None, 3]


def test_a_schema_need_not_be_a_record() -> None:
    assert decoded("long", encoded("long", 5)).column.to_pylist() == [5]
    assert decoder({"type": "string"}).spark_type.simpleString() == "string"


@pytest.mark.parametrize(
    "schema",
    [
        record(("next", ["null", "shop.Order"])),
        {"type": "array", "items": "null"},
        {"type": "array", "items": record(("n", "null"))},
        record(),
        record(("d", {"type": "bytes", "logicalType": "decimal", "precision": 60})),
        record(("u", ["int", "long", "string"])),
        record(("a", "int"), ("A", "int")),
        record(("a", "nothing")),
        "nothing",
        {"type": "record"},
        5,
        [],
    ],
)
def test_unsupported_schemas_raise_config_error(schema: Any) -> None:
    with pytest.raises(ConfigError):
        decoder(schema)


def test_deep_and_exponentially_growing_schemas_are_refused() -> None:
    deep: Any = "int"
    for level in range(200):
        deep = record(("f", deep), name=f"R{level}")
    with pytest.raises(ConfigError):
        decoder(deep)
    names = [record(("f", "int"), name="R0")]
    names += [record(("f", f"R{level}"), ("g", f"R{level}"), name=f"R{level + 1}") for level in range(30)]
    with pytest.raises(ConfigError):
        decoder("R30", references=names)
    with pytest.raises(ConfigError):
        AvroDecoder("[" * 100_000)


@pytest.fixture
def stub() -> Iterator[RegistryStub]:
    with RegistryStub().serving() as found:
        yield found


@pytest.fixture
def registry(stub: RegistryStub) -> RegistryClient:
    return RegistryClient(RegistrySettings((stub.url,), timeout_s=5.0))


def test_writer_schemas_are_resolved_to_the_reader_schema(stub: RegistryStub, registry: RegistryClient) -> None:
    old = record(("id", "int"), ("gone", "string"))
    new = record(
        ("id", "long"),
        ("note", ["null", "string"], {"default": None}),
        ("raw", "bytes", {"default": "\u00ff"}),
        ("money", {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, {"default": "\u0001"}),
    )
    stub.put(7, old)
    stub.put(8, new)
    stub.put(9, record(("other", "int")))
    stub.put(10, record(("id", ["null", "shop.Order"])))
    stub.put(11, {"type": "object"}, kind="JSON")
    values = [
        framed(7, encoded(old, {"id": 1, "gone": "x"})),
        framed(8, encoded(new, {"id": 2**40, "note": "n", "raw": b"r", "money": Decimal("1.25")})),
        framed(9, encoded(record(("other", "int")), {"other": 1})),
        framed(10, b"\0"),
        framed(11, b"{}"),
        framed(12, b"\0"),
        b"\1\0\0\0\7\2",
        b"\0\0\0",
        framed(7, encoded(old, {"id": 1, "gone": "x"})[:-1]),
        framed(7, encoded(old, {"id": 1, "gone": "x"}) + b"!"),
        None,
    ]
    found = decoder(new, registry).decode(pa.array(values * 3, pa.binary()))
    assert found.column.to_pylist()[:2] == [
        {"id": 1, "note": None, "raw": b"\xff", "money": Decimal("0.01")},
        {"id": 2**40, "note": "n", "raw": b"r", "money": Decimal("1.25")},
    ]
    assert sorted(found.bad)[:8] == list(range(2, 10))
    for row, words in {
        2: "No default value for field id",
        3: "is a part of itself",
        4: "of type JSON",
        5: "has no schema 12",
        6: "first byte is 1",
        7: "3 bytes are too few",
        8: "ends too early",
        9: "1 bytes are left over",
    }.items():
        assert words in found.bad[row]
    assert sorted(stub.requested_paths) == sorted(f"/schemas/ids/{number}" for number in (7, 8, 9, 10, 11, 12)), (
        "each once"
    )


def test_schema_references_are_resolved(stub: RegistryStub, registry: RegistryClient) -> None:
    inner, outer = record(("q", "int"), name="a.Inner"), record(("i", "a.Inner"))
    stub.put(1, inner, "inner")
    stub.put(2, outer, references=[("a.Inner", "inner", 1)])
    whole = record(("i", inner))
    found = decoder(whole, registry).decode(pa.array([framed(2, encoded(whole, {"i": {"q": 3}}))], pa.binary()))
    assert (found.column.to_pylist(), found.bad) == ([{"i": {"q": 3}}], {})
    assert decoder(outer, references=[inner]).spark_type.simpleString() == "struct<i:struct<q:int>>"


def test_an_unavailable_registry_raises_instead_of_marking_records_bad(
    stub: RegistryStub, registry: RegistryClient
) -> None:
    stub.failing_statuses = [503] * 1000
    client = RegistryClient(RegistrySettings((stub.url,), timeout_s=0.3))
    with pytest.raises(RegistryError, match="gave no response for schema 1"):
        decoder("int", client).decode(pa.array([framed(1, b"\2")], pa.binary()))


SCHEMA = record(
    ("id", "long"),
    ("name", ["null", "string"]),
    ("tags", {"type": "array", "items": "string"}),
    ("scores", {"type": "map", "values": "double"}),
    ("at", {"type": "long", "logicalType": "timestamp-millis"}),
    ("money", {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": 3}),
    ("choice", ["null", "string", "long", record(("q", "int"), name="Q")]),
)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
VALUES = st.fixed_dictionaries(
    {
        "id": st.integers(-(2**63), 2**63 - 1),
        "name": st.none() | TEXTS,
        "tags": st.lists(TEXTS, max_size=3),
        "scores": st.dictionaries(TEXTS, st.floats(allow_nan=False), max_size=3),
        "at": st.integers(-62_135_596_800_000, 253_402_300_799_999),
        "money": st.decimals(-9_999_999, 9_999_999, places=3),
        "choice": st.none()
        | TEXTS
        | st.integers(-(2**63), 2**63 - 1)
        | st.fixed_dictionaries({"q": st.integers(-5, 5)}),
    }
)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.none() | VALUES, max_size=5))
def test_encoded_values_are_decoded_unchanged(values: list[dict[str, Any] | None]) -> None:
    found = decoded(SCHEMA, *(None if one is None else encoded(SCHEMA, one) for one in values))
    assert not found.bad
    column = found.column
    times = column.field("at").cast(pa.int64()).to_pylist()
    for row, (one, wanted) in enumerate(zip(column.to_pylist(), values, strict=True)):
        if wanted is None:
            assert one is None
            continue
        assert times[row] == wanted["at"] * 1000
        choice = wanted["choice"]
        member = None if choice is None else {str: "member0", int: "member1", dict: "member2"}[type(choice)]
        assert (one["choice"] or {}).get(member) == choice
        assert {name: one[name] for name in ("id", "name", "tags", "money")} == {
            name: wanted[name] for name in ("id", "name", "tags", "money")
        }
        assert dict(one["scores"]) == wanted["scores"]


@settings(deadline=None, max_examples=100)
@given(st.lists(st.binary(max_size=40), max_size=4), st.integers(0, 60))
def test_random_bytes_are_decoded_or_marked_bad(noise: list[bytes], cut: int) -> None:
    good = encoded(ALL, VALUE)
    found = decoded(ALL, *noise, good[:cut], good)
    assert len(found.column) == len(noise) + 2
    assert len(noise) + 1 not in found.bad
    assert all(found.column[row].as_py() is None for row in found.bad)

"""Decoding protobuf values; the descriptors are built by hand, as there may be no protobuf compiler."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.pipelines.registry_stub import RegistryStub, framed

from headrace.pipelines.schemas.columns import Decoded

pytest.importorskip("pyspark", reason="needs the extra spark")
pytest.importorskip("google.protobuf", reason="needs the extra spark")

import pyarrow as pa
from google.protobuf import descriptor_pb2

from headrace.base.errors import ConfigError
from headrace.pipelines.schemas.columns import BadSchema
from headrace.pipelines.schemas.options import Format, RegistrySettings, SideOptions
from headrace.pipelines.schemas.protobuf_schema import descriptors_of_registered, message_class, message_name
from headrace.pipelines.schemas.protobuf_values import ProtobufDecoder
from headrace.pipelines.schemas.registry_client import RegistryClient

PROTO = """
syntax = "proto3";  // message Not { }
package shop.v1;
import "google/protobuf/timestamp.proto";
/* message Nor { } */
option java_package = "message { }";
message Order {
  enum State { NEW = 0; SENT = 1; }
  message Line { string item = 1; uint32 count = 2; }
  message Deep { message Deeper { } }
  oneof x { string a = 1; }
}
message Other { }
"""
F = descriptor_pb2.FieldDescriptorProto


def field(
    name: str, number: int, kind: str, *, many: bool = False, type_name: str | None = None, optional: bool = False
) -> FieldDescriptorProto:
    made = F(
        name=name,
        number=number,
        type=getattr(F, f"TYPE_{kind}"),
        label=F.LABEL_REPEATED if many else F.LABEL_OPTIONAL,
    )
    if type_name:
        made.type_name = type_name
    if optional:
        made.proto3_optional = True
    return made


def order_file() -> FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop.v1", syntax="proto3")
    file.dependency[:] = ["google/protobuf/timestamp.proto", "google/protobuf/duration.proto"]
    order = file.message_type.add(name="Order")
    state = order.enum_type.add(name="State")
    state.value.add(name="NEW", number=0)
    state.value.add(name="SENT", number=1)
    line = order.nested_type.add(name="Line")
    line.field.extend([field("item", 1, "STRING"), field("count", 2, "UINT32")])
    entry = order.nested_type.add(name="ScoresEntry")
    entry.field.extend([field("key", 1, "STRING"), field("value", 2, "MESSAGE", type_name=".shop.v1.Order.Line")])
    entry.options.map_entry = True
    order.field.extend(
        [
            field("id", 1, "INT64"),
            field("name", 2, "STRING"),
            field("state", 3, "ENUM", type_name=".shop.v1.Order.State"),
            field("lines", 4, "MESSAGE", many=True, type_name=".shop.v1.Order.Line"),
            field("scores", 5, "MESSAGE", many=True, type_name=".shop.v1.Order.ScoresEntry"),
            field("first", 6, "MESSAGE", type_name=".shop.v1.Order.Line"),
            field("at", 7, "MESSAGE", type_name=".google.protobuf.Timestamp"),
            field("took", 8, "MESSAGE", type_name=".google.protobuf.Duration"),
            field("big", 9, "UINT64"),
            field("raw", 10, "BYTES"),
            field("note", 11, "STRING", optional=True),
            field("numbers", 12, "SINT32", many=True),
            field("price", 13, "DOUBLE"),
            field("ok", 14, "BOOL"),
        ]
    )
    order.oneof_decl.add(name="_note")
    order.field[10].oneof_index = 0
    file.message_type.add(name="Other").field.append(field("id", 1, "INT64"))
    return file


def described(*files: FileDescriptorProto) -> bytes:
    return descriptor_pb2.FileDescriptorSet(file=files).SerializeToString()


DESCRIPTORS = described(order_file())
Order = message_class(DESCRIPTORS, "shop.v1.Order")


def decoded(*values: Any, registry: RegistryClient | None = None) -> Decoded:
    return ProtobufDecoder(DESCRIPTORS, "shop.v1.Order", registry).decode(pa.array(values, pa.binary()))


def order() -> Any:
    made = Order(id=5, name="ö", state=1, big=2**64 - 1, raw=b"\xff", numbers=[1, -1], price=0.5, ok=True)
    made.lines.add(item="a", count=2**32 - 1)
    made.scores["k"].item = "v"
    made.at.FromDatetime(datetime(2024, 1, 1, 0, 0, 1, 5))
    made.took.FromTimedelta(timedelta(seconds=-2, microseconds=3))
    return made


def test_protobuf_types_map_to_spark_types() -> None:
    assert ProtobufDecoder(DESCRIPTORS, None).spark_type.simpleString() == (
        "struct<id:bigint,name:string,state:string,lines:array<struct<item:string,count:bigint>>,"
        "scores:map<string,struct<item:string,count:bigint>>,first:struct<item:string,count:bigint>,at:timestamp,"
        "took:interval day to second,big:decimal(20,0),raw:binary,note:string,numbers:array<int>,price:double,ok:boolean>"
    )
    found = decoded(order().SerializeToString(), None, b"")
    assert not found.bad
    full, none, empty = found.column.to_pylist()
    assert none is None
    assert full == {
        "id": 5,
        "name": "ö",
        "state": "SENT",
        "lines": [{"item": "a", "count": 2**32 - 1}],
        "scores": [("k", {"item": "v", "count": 0})],
        "first": None,
        "at": datetime(2024, 1, 1, 0, 0, 1, 5, tzinfo=UTC),
        "took": timedelta(seconds=-2, microseconds=3),
        "big": Decimal(2**64 - 1),
        "raw": b"\xff",
        "note": None,
        "numbers": [1, -1],
        "price": 0.5,
        "ok": True,
    }
    assert (empty["id"], empty["state"], empty["lines"], empty["note"], empty["at"]) == (0, "NEW", [], None, None)


def test_malformed_and_out_of_range_values_are_marked_bad() -> None:
    far = Order(id=1)
    far.at.seconds = 2**62
    unknown = Order(id=2)
    unknown.state = 77
    found = decoded(
        b"\xff\xff",
        far.SerializeToString(),
        order().SerializeToString()[:-1],
        unknown.SerializeToString(),
        b"\x12\x01\xff",
    )
    assert sorted(found.bad) == [0, 1, 2, 4]
    assert found.column[3].as_py()["state"] == "77"
    deep = b"\x32\x00"
    for _ in range(20):
        deep = b"\x32" + bytes([len(deep)]) + deep
    assert len(decoded(deep).column) == 1


@pytest.mark.parametrize(
    ("descriptors", "name", "words"),
    [
        (DESCRIPTORS, "shop.v1.Nothing", "have no message shop.v1.Nothing"),
        (b"\xff\xff", None, "no descriptors"),
        (b"", None, "of no file"),
        (described(descriptor_pb2.FileDescriptorProto(name="a.proto")), None, "a.proto has no message"),
        (described(descriptor_pb2.FileDescriptorProto(name="a.proto", dependency=["b.proto"])), "X", "Protobuf"),
    ],
)
def test_unusable_descriptors_raise_config_error(descriptors: bytes, name: str | None, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ProtobufDecoder(descriptors, name)


def test_recursive_messages_are_refused() -> None:
    file = descriptor_pb2.FileDescriptorProto(
        name="a.proto", syntax="proto3", dependency=["google/protobuf/struct.proto"]
    )
    file.message_type.add(name="Tree").field.append(field("next", 1, "MESSAGE", many=True, type_name=".Tree"))
    file.message_type.add(name="Json").field.append(field("v", 1, "MESSAGE", type_name=".google.protobuf.Struct"))
    for name in ("Tree", "Json"):
        with pytest.raises(ConfigError, match="a part of itself"):
            ProtobufDecoder(described(file), name)


def test_message_names_are_found_without_a_compiler() -> None:
    assert message_name(PROTO, (0,)) == "shop.v1.Order"
    assert message_name(PROTO, (1,)) == "shop.v1.Other"
    assert message_name(PROTO, (0, 0)) == "shop.v1.Order.Line"
    assert message_name(PROTO, (0, 1, 0)) == "shop.v1.Order.Deep.Deeper"
    for indexes in ((2,), (0, 2), (1, 0)):
        with pytest.raises(BadSchema):
            message_name(PROTO, indexes)


def test_framed_values_of_another_message_are_marked_bad() -> None:
    with RegistryStub().serving() as stub:
        stub.put(1, PROTO, "orders-value", kind="PROTOBUF", serialized=order_file().SerializeToString())
        stub.put(2, {"type": "string"})
        data = order().SerializeToString()
        values = [
            framed(1, b"\0" + data),
            framed(1, b"\2\0" + data),
            framed(1, b"\2\2" + data),
            framed(1, b"\4\0\0" + data),
            framed(1, b"\2\x80"),
            framed(1, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\1"),
            framed(1, b"\2\1" + data),
            framed(1, b"\2\x10" + data),
            framed(1, b""),
            framed(2, b"\0" + data),
            framed(3, b"\0" + data),
        ]
        client = RegistryClient(RegistrySettings((stub.url,), timeout_s=5.0))
        found = decoded(*values, registry=client)
        assert sorted(found.bad) == list(range(2, len(values)))
        assert [one["id"] for one in found.column.to_pylist()[:2]] == [5, 5]
        assert "it is a shop.v1.Other, not a shop.v1.Order" in found.bad[2]
        assert "no message at [8]" in found.bad[7]
        assert stub.requested_paths == [f"/schemas/ids/{number}" for number in (1, 2, 3)]

        latest = client.latest("orders-value", serialized=True)
        made = descriptors_of_registered(latest.text, latest.references)
        assert ProtobufDecoder(made, None).spark_type == ProtobufDecoder(DESCRIPTORS, None).spark_type


def test_a_proto_file_requires_a_compiler(tmp_path: Path) -> None:
    from headrace.pipelines.schemas.decoding import _settle

    path = tmp_path / "order.proto"
    path.write_text('syntax = "proto3"; message A { int32 a = 1; }')
    side = SideOptions("value", Format.PROTOBUF, schema_file=str(path))
    try:
        import grpc_tools.protoc  # noqa: F401
    except ImportError:
        with pytest.raises(ConfigError, match="grpcio-tools"):
            _settle(side, None)
    else:
        assert _settle(side, None).decoder().spark_type.simpleString() == "struct<a:int>"
        path.write_text("message {")
        with pytest.raises(ConfigError, match="cannot be compiled"):
            _settle(side, None)


ORDERS = st.builds(
    lambda **given: Order(**given),
    id=st.integers(-(2**63), 2**63 - 1),
    name=st.text(st.characters(codec="utf-8"), max_size=8),
    numbers=st.lists(st.integers(-(2**31), 2**31 - 1), max_size=3),
    big=st.integers(0, 2**64 - 1),
    price=st.floats(allow_nan=False),
    raw=st.binary(max_size=5),
)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.none() | ORDERS, max_size=4), st.lists(st.binary(max_size=12), max_size=3))
def test_valid_messages_are_decoded_among_random_bytes(orders: list[Any], noise: list[bytes]) -> None:
    found = decoded(*noise, *(None if one is None else one.SerializeToString() for one in orders))
    assert all(row < len(noise) for row in found.bad)
    names = ("id", "name", "numbers", "big", "price", "raw")
    for one, expected in zip(found.column.slice(len(noise)).to_pylist(), orders, strict=True):
        if expected is None:
            assert one is None
        else:
            assert {name: one[name] for name in names} == {
                name: list(value) if name == "numbers" else value
                for name in names
                for value in (getattr(expected, name),)
            }

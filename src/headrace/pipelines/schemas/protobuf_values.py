"""Decodes Protobuf values to columns field by field: a list per field over all messages, never a dictionary per message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate, chain
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from headrace.pipelines.schemas.columns import BadRecord, BadSchema, Decoded, decode_rows
from headrace.pipelines.schemas.framing import message_indexes, schema_id
from headrace.pipelines.schemas.protobuf_schema import (
    DURATION,
    TIMESTAMP,
    is_map,
    message_class,
    message_name,
    spark_type_of,
)
from headrace.pipelines.schemas.registry_client import RegistryClient
from headrace.pipelines.schemas.spark_types import arrow_type

NAMES_MAX = 1000  # number of cached names
Make = Callable[[Sequence[Any]], pa.Array]


class ProtobufDecoder:
    def __init__(self, descriptors: bytes, name: str | None, registry: RegistryClient | None = None) -> None:
        """Decode messages of this name; with a registry, each value says which message it is, and others are bad records."""
        self._class = message_class(descriptors, name)
        descriptor = self._class.DESCRIPTOR
        self._name = descriptor.full_name
        self.spark_type = spark_type_of(descriptor)
        self._make = _message_maker(descriptor, arrow_type(self.spark_type))
        self._registry = registry
        self._names: dict[tuple[int, tuple[int, ...]], str | BadSchema] = {}

    def decode(self, column: pa.Array) -> Decoded:
        return decode_rows(column, self._plain if self._registry is None else self._framed, self._make)

    def _plain(self, data: bytes) -> Message:
        try:
            return self._class.FromString(data)
        except DecodeError as error:
            raise BadRecord(f"it is no {self._name}: {error}") from None

    def _framed(self, data: bytes) -> Message:
        number = schema_id(data)
        indexes, at = message_indexes(data)
        name = self._names.get((number, indexes)) or self._message_name(number, indexes)
        if isinstance(name, BadSchema):
            raise BadRecord(f"schema {number} cannot be used: {name}")
        if name != self._name:
            raise BadRecord(f"it is a {name}, not a {self._name}")
        return self._plain(data[at:])

    def _message_name(self, number: int, indexes: tuple[int, ...]) -> str | BadSchema:
        assert self._registry is not None
        found = self._registry.by_id(number)
        name: str | BadSchema
        try:
            if found.kind != "PROTOBUF":
                raise BadSchema(f"it is of type {found.kind}")
            name = message_name(found.text, indexes)
        except BadSchema as error:
            name = error
        if len(self._names) >= NAMES_MAX:
            self._names.clear()
        self._names[number, indexes] = name
        return name


def _message_maker(descriptor: Descriptor, kind: pa.DataType) -> Make:
    """Return a function that makes an array of messages, some of which may be None."""
    if descriptor.full_name in (TIMESTAMP, DURATION):
        return _moment_maker(kind)
    fields = [(_field_maker(field, kind.field(index).type)) for index, field in enumerate(descriptor.fields)]
    empty: list[Message] = []

    def make(found: Sequence[Message | None]) -> pa.Array:
        mask = None
        if any(one is None for one in found):
            if not empty:
                empty.append(_empty(descriptor))
            mask = pa.array([one is None for one in found], pa.bool_())
            found = [empty[0] if one is None else one for one in found]
        return pa.StructArray.from_arrays([field(found) for field in fields], fields=list(kind), mask=mask)

    return make


def _empty(descriptor: Descriptor) -> Message:
    from google.protobuf.message_factory import GetMessageClass

    return GetMessageClass(descriptor)()


def _moment_maker(kind: pa.DataType) -> Make:
    def make(found: Sequence[Any]) -> pa.Array:
        micros = [None if one is None else one.seconds * 1_000_000 + one.nanos // 1000 for one in found]
        return pa.array(micros, pa.int64()).cast(kind)

    return make


def _field_maker(field: FieldDescriptor, kind: pa.DataType) -> Make:
    name = field.name
    if is_map(field):
        return _map_maker(field, kind)
    values = _value_maker(field, kind.value_type if field.is_repeated else kind)
    if field.is_repeated:

        def repeated(found: Sequence[Any]) -> pa.Array:
            lists = [getattr(one, name) for one in found]
            return pa.ListArray.from_arrays(_offsets(lists), values(list(chain.from_iterable(lists))), type=kind)

        return repeated
    if field.has_presence:
        return lambda found: values([getattr(one, name) if one.HasField(name) else None for one in found])
    return lambda found: values([getattr(one, name) for one in found])


def _map_maker(field: FieldDescriptor, kind: pa.DataType) -> Make:
    name = field.name
    entry = field.message_type.fields_by_name
    keys, items = _value_maker(entry["key"], kind.key_type), _value_maker(entry["value"], kind.item_type)

    def make(found: Sequence[Any]) -> pa.Array:
        maps = [getattr(one, name) for one in found]
        flat_keys = keys([key for one in maps for key in one])
        flat_items = items([one[key] for one in maps for key in one])
        return pa.MapArray.from_arrays(_offsets(maps), flat_keys, flat_items, type=kind)

    return make


def _offsets(lists: Sequence[Any]) -> pa.Array:
    return pa.array(accumulate(map(len, lists), initial=0), pa.int32())


def _value_maker(field: FieldDescriptor, kind: pa.DataType) -> Make:
    if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
        return _message_maker(field.message_type, kind)
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        return _enum_maker(field.enum_type, kind)
    return lambda found: pa.array(found, kind)


def _enum_maker(descriptor: EnumDescriptor, kind: pa.DataType) -> Make:
    names = {number: value.name for number, value in descriptor.values_by_number.items()}
    return lambda found: pa.array([None if one is None else names.get(one, str(one)) for one in found], kind)

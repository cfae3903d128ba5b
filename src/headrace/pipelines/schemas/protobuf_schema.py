"""Protobuf descriptors from a file, from a registry, or from a .proto if a compiler is installed; and their conversion to Spark's types."""

from __future__ import annotations

import binascii
import re
import tempfile
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from google.protobuf import (
    any_pb2,
    api_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    message,
    message_factory,
    source_context_pb2,
    struct_pb2,
    timestamp_pb2,
    type_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DayTimeIntervalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    TimestampType,
)

from headrace.pipelines.schemas.columns import NODES_MAX, BadSchema, shortened
from headrace.pipelines.schemas.spark_types import decimal_type, struct_type

TIMESTAMP, DURATION = "google.protobuf.Timestamp", "google.protobuf.Duration"
COMPILER_MISSING = (
    "a .proto is only understood where grpcio-tools is installed; give descriptors instead "
    "(protoc --include_imports --descriptor_set_out=…)"
)
_WELL_KNOWN = (
    any_pb2,
    source_context_pb2,
    type_pb2,
    api_pb2,
    descriptor_pb2,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    struct_pb2,
    timestamp_pb2,
    wrappers_pb2,
)
_TYPES: dict[int, DataType] = {
    FieldDescriptor.CPPTYPE_INT32: IntegerType(),
    FieldDescriptor.CPPTYPE_INT64: LongType(),
    FieldDescriptor.CPPTYPE_UINT32: LongType(),
    FieldDescriptor.CPPTYPE_UINT64: decimal_type(20, 0),
    FieldDescriptor.CPPTYPE_DOUBLE: DoubleType(),
    FieldDescriptor.CPPTYPE_FLOAT: FloatType(),
    FieldDescriptor.CPPTYPE_BOOL: BooleanType(),
    FieldDescriptor.CPPTYPE_ENUM: StringType(),
    FieldDescriptor.CPPTYPE_STRING: StringType(),
}


def descriptors_of_file(data: bytes, name: str) -> bytes:
    """Return the FileDescriptorSet of a file, which is one or a .proto."""
    if not name.endswith(".proto"):
        return data
    return _compiled({Path(name).name: data}, Path(name).name)


def descriptors_of_registered(text: str, references: Sequence[tuple[str, str]]) -> bytes:
    """Return the FileDescriptorSet of a registered schema: serialized descriptors if the registry supports it, else a .proto."""
    files = []
    for name, one in (*references, ("schema.proto", text)):
        try:
            file = descriptor_pb2.FileDescriptorProto.FromString(b64decode(one, validate=True))
        except (binascii.Error, ValueError, message.DecodeError):
            sources = {name: found.encode() for name, found in references}
            return _compiled({**sources, "schema.proto": text.encode()}, "schema.proto")
        if name != "schema.proto":
            file.name = name  # other files import it by this name, which may differ from its name when registered
        files.append(file)
    return bytes(descriptor_pb2.FileDescriptorSet(file=files).SerializeToString())


def _compiled(sources: dict[str, bytes], main: str) -> bytes:
    try:
        import grpc_tools
        from grpc_tools import protoc
    except ImportError:
        raise BadSchema(f"Protobuf: {COMPILER_MISSING}") from None
    with tempfile.TemporaryDirectory() as folder:
        for name, data in sources.items():
            target = (Path(folder) / name).resolve()
            if Path(folder).resolve() not in target.parents:
                raise BadSchema(f"Protobuf: {name!r} is no name of a file")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)
        made = Path(folder) / "descriptors"
        known = Path(grpc_tools.__file__).parent / "_proto"
        arguments = [f"-I{folder}", f"-I{known}", "--include_imports", f"--descriptor_set_out={made}", main]
        if protoc.main(["protoc", *arguments]) != 0:
            raise BadSchema(f"Protobuf: {main} cannot be compiled; see the messages of the compiler")
        return made.read_bytes()


def message_class(descriptors: bytes, name: str | None) -> type[message.Message]:
    """Return the class of the named message, or of the first message of the last file."""
    try:
        files = list(descriptor_pb2.FileDescriptorSet.FromString(descriptors).file)
    except message.DecodeError:
        raise BadSchema(
            "Protobuf: these are no descriptors (protoc --include_imports --descriptor_set_out=…)"
        ) from None
    if not files:
        raise BadSchema("Protobuf: the descriptors are of no file")
    pool = descriptor_pool.DescriptorPool()
    known = {module.DESCRIPTOR.name for module in _WELL_KNOWN}
    try:
        for module in _WELL_KNOWN:
            pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
        for file in files:
            if file.name not in known:
                pool.Add(file)
        if name is None:
            if not files[-1].message_type:
                raise BadSchema(f"Protobuf: {files[-1].name} has no message")
            package = files[-1].package
            name = (package + "." if package else "") + files[-1].message_type[0].name
        return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    except KeyError:
        raise BadSchema(f"Protobuf: the descriptors have no message {name}") from None
    except TypeError as error:  # how the pool reports inconsistent files
        raise BadSchema(f"Protobuf: {shortened(error)}") from None


def spark_type_of(descriptor: Descriptor) -> DataType:
    return _Types().message(descriptor, ())


class _Types:
    def __init__(self) -> None:
        self._nodes = 0

    def message(self, descriptor: Descriptor, inside: tuple[str, ...]) -> DataType:
        if descriptor.full_name == TIMESTAMP:
            return TimestampType()
        if descriptor.full_name == DURATION:
            return DayTimeIntervalType()
        if descriptor.full_name in inside:
            raise BadSchema(f"Protobuf: {descriptor.full_name} is a part of itself, for which Spark has no type")
        inside = (*inside, descriptor.full_name)
        fields = [(field.name, self._field(field, inside)) for field in descriptor.fields]
        return struct_type(fields, f"Protobuf: {descriptor.full_name}")

    def _field(self, field: FieldDescriptor, inside: tuple[str, ...]) -> DataType:
        self._nodes += 1
        if self._nodes > NODES_MAX:
            raise BadSchema(f"Protobuf: more than {NODES_MAX} fields")
        if is_map(field):
            entry = field.message_type.fields_by_name
            return MapType(self._value(entry["key"], inside), self._value(entry["value"], inside))
        value = self._value(field, inside)
        return ArrayType(value) if field.is_repeated else value

    def _value(self, field: FieldDescriptor, inside: tuple[str, ...]) -> DataType:
        if field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            return self.message(field.message_type, inside)
        return BinaryType() if field.type == FieldDescriptor.TYPE_BYTES else _TYPES[field.cpp_type]


def is_map(field: FieldDescriptor) -> bool:
    return bool(field.is_repeated and field.message_type is not None and field.message_type.GetOptions().map_entry)


_PROTO_TOKEN = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|[A-Za-z_][\w.]*|[{};]|[^\sA-Za-z_{};]", re.DOTALL
)


def message_name(text: str, indexes: Sequence[int]) -> str:
    """Return the full name of the message at an index path; raise BadSchema if there is none.

    Only the braces of the .proto are parsed, so that no compiler is needed.
    """
    root: dict[str, Any] = {}
    open_messages: list[dict[str, Any] | None] = [root]  # None: other braces than a message's
    package = ""
    words: list[str] = []
    for found in _PROTO_TOKEN.finditer(text):
        token = found[0]
        if token.startswith(("//", "/*")):
            continue
        if token == "{":
            around = open_messages[-1]
            inner: dict[str, Any] | None = None
            if around is not None and len(words) == 2 and words[0] == "message":
                inner = around[words[1]] = {}
            open_messages.append(inner)
        elif token == "}":
            if len(open_messages) > 1:
                open_messages.pop()
        elif token != ";":
            words.append(token)
            continue
        elif len(words) == 2 and words[0] == "package":
            package = words[1]
        words = []
    names = [package] if package else []
    messages: dict[str, Any] = root
    for index in indexes:
        if index >= len(messages):
            raise BadSchema(f"Protobuf: there is no message at {list(indexes)}")
        name = list(messages)[index]
        names.append(name)
        messages = messages[name]
    return ".".join(names)

"""The decoding of a source: resolved once on the driver, from files and the registry, and sent to the tasks complete."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from msgspec import Struct
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from headrace.base.errors import ConfigError
from headrace.pipelines.schemas.columns import (
    SCHEMA_BYTES_MAX,
    BadRecord,
    BadSchema,
    Decoded,
    ValueDecoder,
    decode_rows,
)
from headrace.pipelines.schemas.framing import HEADER_BYTES, schema_id
from headrace.pipelines.schemas.options import (
    ERROR_COLUMN,
    DecodingOptions,
    Format,
    OnBadRecord,
    RegistrySettings,
    SideOptions,
)
from headrace.pipelines.schemas.registry_client import RegistryClient, registry
from headrace.pipelines.schemas.spark_types import parse_json_text, types_from_ddl, types_from_json
from headrace.pipelines.source.options import COLUMNS, HEADERS
from headrace.pipelines.source.rows import schema_of


class SideDecoding(Struct, frozen=True):
    """How to decode keys or values; contains the schema as text or descriptors."""

    side: str
    format: Format
    schema: bytes = b""
    references: tuple[tuple[str, str], ...] = ()
    message: str | None = None
    flat: bool = False
    prefix: str = ""
    registry: RegistrySettings | None = None  # set if the data starts with a schema id

    def decoder(self) -> ValueDecoder:
        """Return the decoder; raise ConfigError that names the option if the schema is bad."""
        try:
            return self._decoder(None if self.registry is None else registry(self.registry))
        except BadSchema as error:
            raise ConfigError(f"the schema of {self.side}.format={self.format.value}: {error}") from None

    def _decoder(self, ids: RegistryClient | None) -> ValueDecoder:
        if self.format is Format.STRING:
            return StringDecoder()
        if self.format is Format.PROTOBUF:
            from headrace.pipelines.schemas.protobuf_values import ProtobufDecoder

            return ProtobufDecoder(self.schema, self.message, ids)
        text = _text(self.schema)
        if self.format is Format.AVRO:
            from headrace.pipelines.schemas.avro_values import AvroDecoder

            return AvroDecoder(text, [one for _, one in self.references], ids)
        from headrace.pipelines.schemas.json_values import JsonDecoder

        decoder = JsonDecoder(_json_types(text, self.references))
        return decoder if ids is None else Unframed(decoder)


class Decoding(Struct, frozen=True):
    sides: tuple[SideDecoding, ...]
    on_bad: OnBadRecord
    dead_letter_topic: str | None


class StringDecoder:
    spark_type = StringType()

    def decode(self, column: pa.Array) -> Decoded:
        try:
            return Decoded(column.cast(pa.utf8()), {})
        except pa.ArrowInvalid:
            return decode_rows(column, _utf8, lambda found: pa.array(found, pa.utf8()))


class Unframed:
    """Strips the schema id for decoders that do not need the writer's schema."""

    def __init__(self, inner: ValueDecoder) -> None:
        self._inner = inner
        self.spark_type = inner.spark_type

    def decode(self, column: pa.Array) -> Decoded:
        stripped = decode_rows(column, _without_header, lambda found: pa.array(found, pa.binary()))
        decoded = self._inner.decode(stripped.column)
        return Decoded(decoded.column, {**stripped.bad, **decoded.bad})


def _without_header(data: bytes) -> bytes:
    schema_id(data)
    return data[HEADER_BYTES:]


def _utf8(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadRecord(f"it is no UTF-8: {error.reason} at byte {error.start}") from None


def _text(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadSchema(f"it is no UTF-8: {error.reason} at byte {error.start}") from None


def _json_types(text: str, references: Sequence[tuple[str, str]]) -> DataType:
    from headrace.pipelines.schemas.json_schema import types_from_json_schema

    if not text.lstrip().startswith("{"):
        return types_from_ddl(text)
    found = parse_json_text(text)
    if found.get("type") == "struct":
        return types_from_json(found)
    return types_from_json_schema(found, {name: parse_json_text(one) for name, one in references})


def settle(options: DecodingOptions) -> Decoding:
    """Resolve the options: read schema files and fetch schemas from the registry."""
    sides = tuple(_settle(side, options.registry) for side in options.sides)
    return Decoding(sides, options.on_bad, options.dead_letter_topic)


def _settle(side: SideOptions, settings: RegistrySettings | None) -> SideDecoding:
    framed = settings if side.framed and side.format.has_schema else None
    schema = b""
    references: tuple[tuple[str, str], ...] = ()
    if side.schema is not None:
        schema = side.schema.encode()
    elif side.schema_file is not None:
        schema = _file(side)
    elif side.format.has_schema:
        assert settings is not None and side.subject is not None
        schema, references = _registered(side, side.subject, registry(settings))
    return SideDecoding(side.side, side.format, schema, references, side.message, side.flat, side.prefix, framed)


def _file(side: SideOptions) -> bytes:
    assert side.schema_file is not None
    name = f"{side.side}.schema.file={side.schema_file}"
    try:
        with Path(side.schema_file).open("rb") as file:
            data = file.read(SCHEMA_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{name} cannot be read: {error.strerror}") from None
    if len(data) > SCHEMA_BYTES_MAX:
        raise ConfigError(f"{name} is longer than {SCHEMA_BYTES_MAX} bytes")
    if side.format is not Format.PROTOBUF:
        return data
    from headrace.pipelines.schemas.protobuf_schema import descriptors_of_file

    try:
        return descriptors_of_file(data, side.schema_file)
    except BadSchema as error:
        raise ConfigError(f"{name}: {error}") from None


def _registered(side: SideOptions, subject: str, ids: RegistryClient) -> tuple[bytes, tuple[tuple[str, str], ...]]:
    is_protobuf = side.format is Format.PROTOBUF
    found = ids.latest(subject, serialized=is_protobuf)
    if found.kind != side.format.value.upper():
        raise ConfigError(
            f"{side.side}.format={side.format.value}, but the schema of subject {subject} is {found.kind}"
        )
    if not is_protobuf:
        return found.text.encode(), found.references
    from headrace.pipelines.schemas.protobuf_schema import descriptors_of_registered

    try:
        return descriptors_of_registered(found.text, found.references), ()
    except BadSchema as error:
        raise ConfigError(f"the schema of subject {subject}: {error}") from None


def available_columns(decoding: Decoding) -> dict[str, list[StructField]]:
    """Return the available columns by their name in `columns`; flat columns have a name for all and one for each."""
    there = {field.name: [field] for field in schema_of((*COLUMNS, HEADERS)).fields}
    flat: dict[str, list[StructField]] = {}
    for side in decoding.sides:
        kind = side.decoder().spark_type
        if not side.flat:
            there[side.side] = [StructField(side.side, kind)]
            continue
        if not isinstance(kind, StructType):
            raise ConfigError(f"{side.side}.columns=flat needs a schema with fields, not {kind.simpleString()}")
        fields = [StructField(side.prefix + field.name, field.dataType) for field in kind.fields]
        there[side.side] = fields
        for field in fields:
            taken = {name.lower() for name in (*there, *flat, ERROR_COLUMN) if name != side.side}
            if field.name.lower() in taken:
                raise ConfigError(
                    f"{side.side}.columns=flat: there is a column {field.name} already; set {side.side}.prefix, or read a struct"
                )
            if field.name != side.side:
                flat[field.name] = [field]
    if decoding.on_bad is OnBadRecord.NULL:
        there[ERROR_COLUMN] = [StructField(ERROR_COLUMN, StringType())]
    return there | flat


def decoded_schema(decoding: Decoding, columns: Sequence[str], *, chosen: bool) -> StructType:
    """Return the schema of the source; unless the user has `chosen` the columns, the error column is added."""
    there = available_columns(decoding)
    names = {name.lower(): name for name in there}
    fields: list[StructField] = []
    for name in columns:
        if name.lower() not in names:
            raise ConfigError(f"columns: {name!r} is none; there are {', '.join(there)}")
        fields += there[names[name.lower()]]
    if not chosen and ERROR_COLUMN in there:
        fields += there[ERROR_COLUMN]
    if len({field.name for field in fields}) < len(fields):
        raise ConfigError(f"columns={','.join(columns)} names one of them twice")
    return StructType(fields)


def check_decoded(decoding: Decoding, schema: StructType) -> None:
    """Raise ConfigError unless a schema, perhaps a user's, is a part of the available columns and fields of structs."""
    there = {field.name: field for fields in available_columns(decoding).values() for field in fields}
    for field in schema.fields:
        if field.name not in there:
            raise ConfigError(f"schema: there is no column {field.name!r}; there are {', '.join(there)}")
        if not _is_part(field.dataType, there[field.name].dataType):
            kind = there[field.name].dataType.simpleString()
            raise ConfigError(f"schema: column {field.name} is {kind}, not {field.dataType.simpleString()}")


def _is_part(requested: DataType, there: DataType) -> bool:
    if isinstance(requested, StructType) and isinstance(there, StructType):
        kinds = {field.name: field.dataType for field in there.fields}
        return all(field.name in kinds and _is_part(field.dataType, kinds[field.name]) for field in requested.fields)
    if isinstance(requested, ArrayType) and isinstance(there, ArrayType):
        return _is_part(requested.elementType, there.elementType)
    if isinstance(requested, MapType) and isinstance(there, MapType):
        return requested.keyType == there.keyType and _is_part(requested.valueType, there.valueType)
    return requested == there

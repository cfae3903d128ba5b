"""Decodes Avro values to columns: reads them with the schema they were written with, resolved to the requested one."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import fastavro
import pyarrow as pa

from headrace.pipelines.schemas.avro_schema import AvroSchema, read_avro_schema
from headrace.pipelines.schemas.columns import BadRecord, BadSchema, Decoded, decode_rows, shortened
from headrace.pipelines.schemas.framing import HEADER_BYTES, schema_id
from headrace.pipelines.schemas.registry_client import RegistryClient
from headrace.pipelines.schemas.spark_types import arrow_type

WRITERS_MAX = 1000  # number of cached writer schemas


class AvroDecoder:
    def __init__(self, text: str, references: Sequence[str] = (), registry: RegistryClient | None = None) -> None:
        """Decode with this schema; with a registry, each value names the schema that it was written with."""
        schema = read_avro_schema(text, references, with_shape=True)
        assert schema.shape is not None
        self._text = text
        self._schema = schema
        self._shape = schema.shape
        self.spark_type = schema.shape.spark
        self._arrow = arrow_type(self.spark_type)
        self._registry = registry
        self._writers: dict[int, AvroSchema | BadSchema] = {}

    def decode(self, column: pa.Array) -> Decoded:
        return decode_rows(column, self._plain if self._registry is None else self._framed, self._made)

    def _plain(self, data: bytes) -> Any:
        return self._read(io.BytesIO(data), len(data), self._schema.decoding, None)

    def _framed(self, data: bytes) -> Any:
        number = schema_id(data)
        writer = self._writers.get(number) or self._writer(number)
        if isinstance(writer, BadSchema):
            raise BadRecord(f"schema {number} cannot be used: {writer}")
        source = io.BytesIO(data) if writer.decoding is self._schema.decoding else _Whole(data)
        source.seek(HEADER_BYTES)
        try:
            return self._read(source, len(data), writer.decoding, self._schema.decoding)
        except BadRecord as error:
            raise BadRecord(f"{error} (it was written with schema {number})") from None

    def _writer(self, number: int) -> AvroSchema | BadSchema:
        assert self._registry is not None
        found = self._registry.by_id(number)
        writer: AvroSchema | BadSchema
        if found.kind != "AVRO":
            writer = BadSchema(f"it is of type {found.kind}")
        elif found.text == self._text:
            writer = self._schema
        else:
            try:
                writer = read_avro_schema(found.text, [text for _, text in found.references], with_shape=False)
            except BadSchema as error:
                writer = error
        if len(self._writers) >= WRITERS_MAX:
            self._writers.clear()
        self._writers[number] = writer
        return writer

    def _read(self, source: io.BytesIO, size: int, writer: Any, reader: Any) -> Any:
        try:
            found = fastavro.schemaless_reader(source, writer, reader, return_named_type=self._schema.has_choices)
        except EOFError:
            raise BadRecord("it ends too early") from None
        except Exception as error:  # malformed bytes can cause any error in fastavro
            raise BadRecord(f"{type(error).__name__}: {shortened(error)}") from None
        left = size - source.tell()
        if left:
            raise BadRecord(f"{left} bytes are left over: it was written with another schema")
        return found

    def _made(self, found: Sequence[Any]) -> pa.Array:
        fix = self._shape.fix
        if fix is not None:
            found = [fix(one) for one in found]
        return pa.array(found, self._shape.storage).cast(self._arrow)


class _Whole(io.BytesIO):
    """A stream that raises at its end: fastavro does not check for it when it skips fields."""

    def read(self, size: int | None = -1, /) -> bytes:
        data = super().read(size)
        if len(data) != size:
            raise EOFError
        return data

"""Decodes JSON values to structs. Arrow parses a whole column at once; it cannot read maps and binaries, so those take a slower path.

Arrow's reader is unsafe for untrusted input (a line with only `null` crashes the process), so each value is first checked to be one object.
"""

from __future__ import annotations

import io
from base64 import b64decode
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal, InvalidOperation
from math import isfinite
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.json
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from headrace.pipelines.schemas.columns import BadRecord, BadSchema, Decoded, decode_rows
from headrace.pipelines.schemas.spark_types import DECIMAL_DIGITS_MAX, arrow_type

Coerce = Callable[[Any], Any]


class _AnyObject(msgspec.Struct):
    """Accepts any fields and keeps none."""


class JsonDecoder:
    def __init__(self, kind: DataType) -> None:
        if not isinstance(kind, StructType):
            raise BadSchema(f"JSON values are objects; their schema must be a struct, not {kind.simpleString()}")
        self.spark_type = kind
        self._arrow = arrow_type(kind)
        self._objects = msgspec.json.Decoder(_AnyObject)
        self._anything = msgspec.json.Decoder(float_hook=Decimal)
        self._coerce = _coercion(kind, "")
        self._is_vectorised = _is_vectorised(kind)
        storage = _storage(kind)
        self._parsing = pyarrow.json.ParseOptions(
            explicit_schema=pa.schema(list(storage)), unexpected_field_behavior="ignore"
        )
        self._storage = storage

    def decode(self, column: pa.Array) -> Decoded:
        if self._is_vectorised:
            return decode_rows(column, _checker(column, self._objects), self._parsed)
        return decode_rows(column, _checker(column, self._anything), self._coerced)

    def _parsed(self, found: Sequence[tuple[bytes, Any]]) -> pa.Array:
        if not found:
            return pa.array([], self._arrow)
        text = b"\n".join([data for data, _ in found]) + b"\n"
        reading = pyarrow.json.ReadOptions(use_threads=False, block_size=len(text) + 1)
        table = pyarrow.json.read_json(io.BytesIO(text), reading, self._parsing)
        if table.num_rows != len(found):
            raise BadRecord(f"{len(found)} values gave {table.num_rows} rows")
        columns = [table.column(field.name).combine_chunks() for field in self._storage]
        return pa.StructArray.from_arrays(columns, fields=list(self._storage)).cast(self._arrow)

    def _coerced(self, found: Sequence[tuple[bytes, Any]]) -> pa.Array:
        return pa.array([self._coerce(value) for _, value in found], self._arrow)


def _checker(column: pa.Array, decoder: Any) -> Callable[[bytes], tuple[bytes, Any]]:
    try:
        column.cast(pa.utf8())  # checks all values at once; neither parser checks UTF-8
        is_text = True
    except pa.ArrowInvalid:
        is_text = False

    def check(data: bytes) -> tuple[bytes, Any]:
        try:
            if not is_text:
                data.decode()
            return data, decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BadRecord(str(error)) from None
        except RecursionError:
            raise BadRecord("too many values within one another") from None

    return check


def _is_vectorised(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return all(_is_vectorised(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _is_vectorised(kind.elementType)
    return not isinstance(kind, (MapType, BinaryType))


def _storage(kind: DataType) -> pa.DataType:
    """Return a type that Arrow's reader supports, to be cast: it cannot read dates, and does not check the digits of decimals."""
    if isinstance(kind, StructType):
        return pa.struct([pa.field(field.name, _storage(field.dataType)) for field in kind.fields])
    if isinstance(kind, ArrayType):
        return pa.list_(pa.field("element", _storage(kind.elementType)))
    if isinstance(kind, DateType):
        return pa.utf8()
    if isinstance(kind, DecimalType):
        return pa.decimal128(DECIMAL_DIGITS_MAX, kind.scale)
    return arrow_type(kind)


def _coercion(kind: DataType, path: str) -> Coerce:
    """Return a conversion from JSON to Arrow, as strict as Arrow's own reader; it raises BadRecord that names the field."""
    if isinstance(kind, StructType):
        fields = [(field.name, _coercion(field.dataType, f"{path}.{field.name}")) for field in kind.fields]
        return _checked(dict, path, lambda found: {name: coerce(found.get(name)) for name, coerce in fields})
    if isinstance(kind, ArrayType):
        element = _coercion(kind.elementType, f"{path}[]")
        return _checked(list, path, lambda found: [element(one) for one in found])
    if isinstance(kind, MapType):
        if not isinstance(kind.keyType, StringType):
            raise BadSchema(f"{path.removeprefix('.')}: names of JSON are text, not {kind.keyType.simpleString()}")
        value = _coercion(kind.valueType, f"{path}.*")
        return _checked(dict, path, lambda found: [(name, value(one)) for name, one in found.items()])
    for types, expected, convert in _LEAVES:
        if isinstance(kind, types):
            return _checked(expected, path, convert)
    return _checked(int, path, int)


def _checked(expected: type | tuple[type, ...], path: str, convert: Coerce) -> Coerce:
    name = path.removeprefix(".") or "the value"

    def coerce(found: Any) -> Any:
        if found is None:
            return None
        if not isinstance(found, expected) or (isinstance(found, bool) and expected is not bool):
            raise BadRecord(f"{name}: {type(found).__name__} was not expected")
        try:
            return convert(found)
        except (ValueError, InvalidOperation, OverflowError) as error:
            raise BadRecord(f"{name}: {error}") from None

    return coerce


def _float(found: int | Decimal) -> float:
    value = float(found)
    if not isfinite(value):
        raise ValueError(f"{found} is too large")
    return value


def _moment(found: str) -> datetime:
    moment = datetime.fromisoformat(found)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


_LEAVES: tuple[tuple[Any, Any, Coerce], ...] = (
    (BooleanType, bool, bool),
    (StringType, str, str),
    ((FloatType, DoubleType), (int, Decimal), _float),
    (DecimalType, (int, Decimal, str), Decimal),
    (BinaryType, str, lambda found: b64decode(found, validate=True)),
    (DateType, str, date.fromisoformat),
    (TimestampType, str, _moment),
    (TimestampNTZType, str, lambda found: _moment(found).replace(tzinfo=None)),
)

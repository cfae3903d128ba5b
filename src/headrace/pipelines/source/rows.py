"""The columns of the source, as in Spark's own Kafka source, and record batches with exactly the Arrow schema that Spark expects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from headrace.base.errors import ConfigError
from headrace.pipelines.source.options import HEADERS

if TYPE_CHECKING:
    from collections.abc import Callable

_HEADER = StructType([StructField("key", StringType()), StructField("value", BinaryType())])
_ARROW_HEADER = pa.struct([("key", pa.utf8()), ("value", pa.binary())])
_TYPES: dict[str, tuple[DataType, pa.DataType]] = {
    "key": (BinaryType(), pa.binary()),
    "value": (BinaryType(), pa.binary()),
    "topic": (StringType(), pa.utf8()),
    "partition": (IntegerType(), pa.int32()),
    "offset": (LongType(), pa.int64()),
    "timestamp": (TimestampType(), pa.timestamp("us", "UTC")),
    "timestampType": (IntegerType(), pa.int32()),
    HEADERS: (ArrayType(_HEADER), pa.list_(pa.field("element", _ARROW_HEADER))),
}
_CLIENT_NAMES = {"timestampType": "timestamp_type"}
TIMESTAMP_UNIT = "us"


def schema_of(columns: Sequence[str]) -> StructType:
    return StructType([StructField(name, _TYPES[name][0]) for name in columns])


def check_schema(schema: StructType) -> None:
    """Raise ConfigError unless a user's schema is a selection of the source's columns, in any order, with their types."""
    for field in schema.fields:
        if field.name not in _TYPES:
            raise ConfigError(f"schema: there is no column {field.name!r}; there are {', '.join(_TYPES)}")
        if field.dataType != _TYPES[field.name][0]:
            kind = _TYPES[field.name][0].simpleString()
            raise ConfigError(f"schema: column {field.name} is {kind}, not {field.dataType.simpleString()}")


def client_columns(schema: StructType) -> tuple[str, ...]:
    """Return the columns to request from `read_range`, in the order of the schema."""
    return tuple(_CLIENT_NAMES.get(name, name) for name in schema.fieldNames())


def row_maker(schema: StructType) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """Return a function that converts batches of `read_range` to Spark's schema; only headers are copied."""
    arrow = pa.schema([pa.field(field.name, _TYPES[field.name][1], field.nullable) for field in schema.fields])
    headers = arrow.get_field_index(HEADERS)

    def rows(batch: pa.RecordBatch) -> pa.RecordBatch:
        arrays = batch.columns
        if headers >= 0:
            arrays[headers] = _null_if_none(arrays[headers], arrow.field(headers).type)
        return pa.RecordBatch.from_arrays(arrays, schema=arrow)

    return rows


def _null_if_none(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Replace empty header lists with null, as Spark's own source does."""
    count = len(column)
    if not count or column.offsets[0].as_py() == column.offsets[count].as_py():
        return pa.nulls(count, kind)
    none = pc.equal(pc.list_value_length(column), 0)
    return pa.ListArray.from_arrays(column.offsets, column.values, type=kind, mask=none)

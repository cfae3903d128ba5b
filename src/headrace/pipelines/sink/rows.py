"""Splits rows into Arrow batches by topic.

The columns are those of Spark's own Kafka sink (key, value, topic, partition, headers), and timestamp.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from headrace.base.errors import ConfigError
from headrace.pipelines.sink.commands import SinkError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

COLUMNS = ("key", "value", "headers", "timestamp", "partition")  # columns passed to the producer; others are ignored
TOPIC = "topic"
HEADERS_TYPE = "array<struct<key:string,value:binary>>"
_TYPES = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "topic": ("string",),
    "partition": ("int",),
    "headers": (HEADERS_TYPE,),
    "timestamp": ("timestamp", "timestamp_ntz"),
}


def check_schema(schema: StructType, topic: str | None) -> None:
    """Raise ConfigError that names the column if one is missing, duplicated or of the wrong type."""
    found = {field.name: field.dataType for field in schema.fields}
    if len(found) < len(schema.fields):
        names = [field.name for field in schema.fields]
        twice = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"there are two columns {twice}")
    if "value" not in found:
        raise ConfigError(f"a column value is needed, string or binary; there are {', '.join(found) or 'none'}")
    if topic is None and TOPIC not in found:
        raise ConfigError("no topic to write to: the option topic or a column topic says which")
    for name, types in _TYPES.items():
        if name in found and _name(found[name]) not in types:
            raise ConfigError(f"column {name} is {found[name].simpleString()}; it must be {' or '.join(types)}")


def _name(kind: DataType) -> str:
    text = kind.simpleString()
    return "string" if text.startswith("string collate") else text


def rows_by_topic(rows: pa.RecordBatch, topic: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Yield the rows of each topic, in order; raise SinkError that names the row if one cannot be written."""
    import pyarrow.compute as pc

    records = _records(rows)
    if topic is not None:
        yield topic, records
        return
    topics = rows.column(TOPIC)
    if topics.null_count:
        row = pc.index(pc.is_null(topics), True).as_py()
        raise SinkError(
            f"row {row + 1} of {rows.num_rows} in a batch of Arrow rows has no topic: its column topic is null"
        )
    names = [name.as_py() for name in pc.unique(topics)]
    if len(names) == 1:
        yield names[0], records
        return
    for name in names:
        yield name, records.filter(pc.equal(topics, name))


def _records(rows: pa.RecordBatch) -> pa.RecordBatch:
    import pyarrow as pa

    arrays, names = [], []
    for name in COLUMNS:
        if name not in rows.schema.names:
            continue
        column = rows.column(name)
        if name == "timestamp":
            column = column.cast(pa.timestamp("ms", column.type.tz), safe=False)  # Kafka has no microseconds
        elif name == "headers":
            _check_headers(column)
        arrays.append(column)
        names.append(name)
    return pa.RecordBatch.from_arrays(arrays, names)


def _check_headers(column: pa.Array) -> None:
    entries = column.flatten()
    if entries.null_count or (len(entries) and entries.field("key").null_count):
        raise SinkError("a header has no key: Kafka's headers have a key each, only their values may be null")

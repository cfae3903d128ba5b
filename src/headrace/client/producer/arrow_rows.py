"""Splits Arrow rows by partition: hashes, sorts and slices them in compiled code.

No Python object per row is created, except for a custom partitioner. The columns are key, value, headers, timestamp,
and `partition` for rows with a fixed partition; all are optional.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import cycle, islice
from typing import TYPE_CHECKING

from headrace.base.errors import ErrorCode, KafkaError
from headrace.client.producer.partitioners import Partitioner, RoundRobin
from headrace.records.columns import partitions_of

if TYPE_CHECKING:
    import pyarrow as pa

RECORD_COLUMNS = ("key", "value", "headers", "timestamp")
ROWS_AT_ONCE_MAX = 1 << 20  # rows sorted at once; bounds the memory used for a very large batch
SMALL_CHUNK_ROWS = 4096


def record_batches(rows: pa.RecordBatch | pa.Table) -> list[pa.RecordBatch]:
    """Return the non-empty record batches; small chunks of a table are combined.

    Raise KafkaError INVALID_RECORD if a column is unknown or occurs twice.
    """
    import pyarrow as pa

    if isinstance(rows, pa.RecordBatch):
        batches = [rows]
    elif isinstance(rows, pa.Table):
        batches = rows.to_batches()
        if len(batches) > 1 and rows.num_rows < len(batches) * SMALL_CHUNK_ROWS:
            batches = rows.combine_chunks().to_batches()
    else:
        raise TypeError(f"rows are a pyarrow RecordBatch or Table, not a {type(rows).__name__}")
    unknown = set(rows.schema.names) - {*RECORD_COLUMNS, "partition"}
    if unknown or len(set(rows.schema.names)) < len(rows.schema.names):
        raise KafkaError(
            ErrorCode.INVALID_RECORD,
            f"columns {', '.join(rows.schema.names)}: a record has {', '.join(RECORD_COLUMNS)} and partition, once each",
        )
    return [batch for batch in batches if batch.num_rows]


def records_of(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows without the column `partition`."""
    return rows.select([name for name in rows.schema.names if name in RECORD_COLUMNS])


def by_partition(
    rows: pa.RecordBatch, partitions: int, *, by_key: bool, custom: Partitioner | None, topic: str
) -> Iterator[tuple[int | None, pa.RecordBatch]]:
    """Yield rows by partition, keeping their order; None means that they may go to any partition."""
    has_keys = by_key and "key" in rows.schema.names and rows.column("key").null_count < rows.num_rows
    if custom is None and "partition" not in rows.schema.names and (partitions == 1 or not has_keys):
        yield (0 if partitions == 1 else None), rows
        return
    for start in range(0, rows.num_rows, ROWS_AT_ONCE_MAX):
        some = rows.slice(start, ROWS_AT_ONCE_MAX)
        yield from _sorted(records_of(some), _chosen(some, partitions, has_keys, custom, topic))


def _chosen(rows: pa.RecordBatch, partitions: int, by_key: bool, custom: Partitioner | None, topic: str) -> pa.Array:
    """Return the partition of every row as int32, null for any partition."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(custom, RoundRobin):
        turns = cycle([*range(first := custom.turns(topic, partitions, rows.num_rows), partitions), *range(first)])
        chosen = pa.Array.from_buffers(
            pa.int32(), rows.num_rows, [None, pa.py_buffer(array("i", islice(turns, rows.num_rows)))]
        )
    elif custom is not None:
        nothing = [None] * rows.num_rows
        keys, values = (
            rows.column(name).cast(pa.binary()).to_pylist() if name in rows.schema.names else nothing
            for name in ("key", "value")
        )
        chosen = pa.array(
            (custom(topic, key, value, partitions) for key, value in zip(keys, values, strict=True)),
            pa.int32(),
            size=rows.num_rows,
        )
    elif by_key:
        chosen = partitions_of(rows, partitions)
    else:
        chosen = pa.nulls(rows.num_rows, pa.int32())
    if "partition" in rows.schema.names:
        chosen = pc.coalesce(rows.column("partition").cast(pa.int32()), chosen)
    bounds = pc.min_max(chosen)
    lowest, highest = bounds["min"].as_py(), bounds["max"].as_py()
    if lowest is not None and not 0 <= lowest <= highest < partitions:
        wrong = lowest if lowest < 0 else highest
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic} has partitions 0 to {partitions - 1}, not {wrong}"
        )
    return chosen


def _sorted(rows: pa.RecordBatch, chosen: pa.Array) -> Iterator[tuple[int | None, pa.RecordBatch]]:
    import pyarrow.compute as pc

    counts = [(found["values"].as_py(), found["counts"].as_py()) for found in pc.value_counts(chosen)]
    if len(counts) == 1:
        yield counts[0][0], rows
        return
    rows = rows.take(pc.array_sort_indices(chosen))  # stable; nulls come last
    start = 0
    for partition, count in sorted(counts, key=lambda found: (found[0] is None, found[0])):
        yield partition, rows.slice(start, count)
        start += count

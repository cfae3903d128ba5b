"""Conversion of record batches to and from Arrow: one row per record, one copy, no Python object per record.

pyarrow is an optional dependency, so only the functions that need it import it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from headrace.records.batch import (
    HEADER_BYTES,
    LOG_APPEND_TIME,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    BatchHeader,
    Buffer,
    advance_sequence,
    check_crc,
    iterate_batches,
)
from headrace.records.builder import BatchBuilder
from headrace.records.compression import Codec
from headrace.records.kernel import decode_columns, encode_columns, partitions_for_keys
from headrace.records.kernel_types import (
    HEADERS_COLUMN,
    KEYS_COLUMN,
    OFFSETS_COLUMN,
    TIMESTAMP_TYPES_COLUMN,
    TIMESTAMPS_COLUMN,
    VALUES_COLUMN,
    BinaryColumn,
    Columns,
    HeaderColumn,
    Section,
)
from headrace.records.record import Headers, record_section

if TYPE_CHECKING:
    import pyarrow as pa

DECODED_BYTES_MAX = 1024 * 1024 * 1024  # decompressed bytes of all batches in one call
OFFSET_MAX = 2**63 - 1
COLUMN_BITS = {
    "offset": OFFSETS_COLUMN,
    "timestamp": TIMESTAMPS_COLUMN,
    "timestamp_type": TIMESTAMP_TYPES_COLUMN,
    "key": KEYS_COLUMN,
    "value": VALUES_COLUMN,
    "headers": HEADERS_COLUMN,
}
USUAL_COLUMNS = ("offset", "timestamp", "key", "value")
MILLISECONDS, MICROSECONDS = "ms", "us"


class EncodedBatch(NamedTuple):
    batch: bytearray
    rows: int


def section_of(batch: Buffer, header: BatchHeader, limit: int = DECODED_BYTES_MAX) -> Section:
    """Return the section for `decode_columns` of the batch at the start of the buffer."""
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    records = record_section(batch, header, limit)
    return Section(records, header.record_count, header.base_offset, header.base_timestamp, append_time)


def keys_and_values(batch: Buffer, header: BatchHeader) -> Iterator[tuple[bytes | None, bytes | None]]:
    """Return the keys and values of the batch at the start of the buffer. Raise CorruptBatch if it is malformed.

    Does not need pyarrow.
    """
    check_crc(batch, 0, header)
    columns = decode_columns([section_of(batch, header)], KEYS_COLUMN | VALUES_COLUMN, 0, OFFSET_MAX)
    return zip(each_binary(columns.keys, columns.rows), each_binary(columns.values, columns.rows), strict=True)


def each_binary(column: BinaryColumn | None, rows: int) -> list[bytes | None]:
    assert column is not None, "the column was requested"
    data, validity = bytes(column.data), column.validity
    ends = memoryview(column.offsets).cast("B").cast("i").tolist()
    found: list[bytes | None] = [data[begin:end] for begin, end in pairwise(ends[: rows + 1])]
    if validity is not None:
        for row in range(rows):
            if not validity[row >> 3] >> (row & 7) & 1:
                found[row] = None
    return found


def decode_batches(
    buffer: Buffer,
    *,
    start_offset: int = 0,
    end_offset: int = OFFSET_MAX,
    columns: Sequence[str] = USUAL_COLUMNS,
    timestamp_unit: str = MILLISECONDS,
    limit: int = DECODED_BYTES_MAX,
    verify_crc: bool = True,
) -> pa.RecordBatch:
    """Decode the whole batches of a fetch: one row for each record from `start_offset` to before `end_offset`.

    The first batch of a fetch may begin below the requested offset. Control batches are skipped.
    """
    view = memoryview(buffer)
    sections = []
    for position, header in iterate_batches(view):
        if header.is_control or header.last_offset < start_offset or header.base_offset >= end_offset:
            continue
        if verify_crc:
            check_crc(view, position, header)
        section = section_of(view[position:], header, limit)
        limit -= len(section.records)
        sections.append(section)
    found = decode_columns(sections, column_bits(columns), start_offset, end_offset, timestamp_unit == MICROSECONDS)
    return record_batch_of(found, columns, timestamp_unit)


def column_bits(columns: Sequence[str]) -> int:
    """Return the column bits for `decode_columns`. Raise ValueError for an unknown column."""
    bits = 0
    for name in columns:
        if name not in COLUMN_BITS:
            raise ValueError(f"{name!r} is no column of records; there are {', '.join(COLUMN_BITS)}")
        bits |= COLUMN_BITS[name]
    return bits


def record_batch_of(found: Columns, columns: Sequence[str], timestamp_unit: str = MILLISECONDS) -> pa.RecordBatch:
    """Wrap decoded columns without copying, in the order of the names.

    All named columns must have been decoded, timestamps in `timestamp_unit`.
    """
    import pyarrow as pa

    return pa.RecordBatch.from_arrays([_array(found, name, timestamp_unit) for name in columns], list(columns))


def _array(found: Columns, name: str, timestamp_unit: str) -> pa.Array:
    import pyarrow as pa

    rows = found.rows
    if name == "key" or name == "value":
        column = found.keys if name == "key" else found.values
        assert column is not None
        return _binary_array(column, rows)
    if name == "headers":
        assert found.headers is not None
        return _header_array(found.headers, rows)
    if name == "offset":
        kind, data = pa.int64(), found.offsets
    elif name == "timestamp":
        kind, data = pa.timestamp(timestamp_unit, "UTC"), found.timestamps
    else:
        kind, data = pa.int32(), found.timestamp_types
    assert data is not None
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(data)], null_count=0)


def each_headers(column: HeaderColumn | None, rows: int) -> list[Headers]:
    """Return the headers of each row, in the form of `Record.headers`."""
    assert column is not None, "the column was requested"
    entries = len(column.keys.offsets) // 4 - 1
    if entries == 0:
        return [()] * rows
    names = [(name or b"").decode("utf-8", "replace") for name in each_binary(column.keys, entries)]
    pairs = list(zip(names, each_binary(column.values, entries), strict=True))
    ends = memoryview(column.offsets).cast("B").cast("i").tolist()
    return [tuple(pairs[begin:end]) for begin, end in pairwise(ends[: rows + 1])]


def _binary_array(column: BinaryColumn, rows: int) -> pa.Array:
    import pyarrow as pa

    validity = None if column.validity is None else pa.py_buffer(column.validity)
    buffers = [validity, pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(pa.binary(), rows, buffers, null_count=column.null_count)


def _header_array(headers: HeaderColumn, rows: int) -> pa.Array:
    import pyarrow as pa

    entries = len(headers.keys.offsets) // 4 - 1
    keys = _binary_array(headers.keys, entries)
    try:
        names = keys.cast(pa.utf8())
    except pa.ArrowInvalid:
        # Brokers do not check header keys; one that is not UTF-8 must not make its partition unreadable.
        names = pa.array([key.decode("utf-8", "replace") for key in keys.to_pylist()], pa.utf8())
    structs = pa.StructArray.from_arrays([names, _binary_array(headers.values, entries)], ["key", "value"])
    kind = pa.list_(structs.type)
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(headers.offsets)], children=[structs])


def encode_batches(
    rows: pa.RecordBatch,
    *,
    batch_bytes_max: int,
    now_ms: int,
    codec: Codec = Codec.NONE,
    level: int | None = None,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    transactional: bool = False,
) -> Iterator[EncodedBatch]:
    """Yield batches of at most `batch_bytes_max` bytes before compression, but at least one record each.

    Reads the columns key, value, headers and timestamp, all optional; a record without a timestamp gets `now_ms`. Sequence numbers
    continue from batch to batch.
    """
    timestamps = _timestamps(rows, now_ms)
    keys, values = (_binary_column(rows, name) for name in ("key", "value"))
    headers = _header_column(rows)
    start = 0
    while start < rows.num_rows:
        base_timestamp = now_ms
        if timestamps is not None:
            base_timestamp = int.from_bytes(timestamps[8 * start : 8 * start + 8], "little", signed=True)
        section, count, max_timestamp = encode_columns(
            start,
            rows.num_rows - start,
            timestamps,
            base_timestamp,
            keys,
            values,
            headers,
            batch_bytes_max - HEADER_BYTES,
        )
        builder = BatchBuilder.from_section(section, count, base_timestamp, max_timestamp)
        batch = builder.build(
            codec=codec,
            level=level,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            transactional=transactional,
        )
        yield EncodedBatch(batch, count)
        start += count
        if base_sequence != NO_SEQUENCE:
            base_sequence = advance_sequence(base_sequence, count)


def partitions_of(rows: pa.RecordBatch, partitions: int) -> pa.Array:
    """Return each row's partition by its key as int32; null for rows without a key, which may go to any partition."""
    import pyarrow as pa

    keys = _binary_column(rows, "key")
    if keys is None:
        return pa.nulls(rows.num_rows, pa.int32())
    found = partitions_for_keys(keys, 0, rows.num_rows, partitions)
    validity = None if keys.validity is None else pa.py_buffer(keys.validity)
    return pa.Array.from_buffers(pa.int32(), rows.num_rows, [validity, pa.py_buffer(found)])


def _column(rows: pa.RecordBatch, name: str, kind: pa.DataType) -> pa.Array | None:
    """Return the column as `kind`, its buffers starting at row 0, or None if absent; copy only slices and casts."""
    import pyarrow as pa

    if name not in rows.schema.names:
        return None
    column = rows.column(name)
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if column.type != kind:
        column = column.cast(kind)
    return _from_zero(column)


def _timestamps(rows: pa.RecordBatch, now_ms: int) -> memoryview | None:
    import pyarrow as pa

    if "timestamp" not in rows.schema.names:
        return None
    kind = rows.schema.field("timestamp").type
    milliseconds = pa.timestamp("ms", kind.tz) if pa.types.is_timestamp(kind) else pa.int64()
    column = _column(rows, "timestamp", milliseconds)
    assert column is not None
    if column.null_count:
        column = column.cast(pa.int64()).fill_null(now_ms)
    return memoryview(column.buffers()[1] or b"")


def _binary_column(rows: pa.RecordBatch, name: str) -> BinaryColumn | None:
    import pyarrow as pa

    column = _column(rows, name, pa.binary())
    return None if column is None else _binary_buffers(column)


def _binary_buffers(column: pa.Array) -> BinaryColumn:
    validity, offsets, data = (None if buffer is None else memoryview(buffer) for buffer in column.buffers())
    return BinaryColumn(validity, offsets or _NO_OFFSETS, data or memoryview(b""), column.null_count)


_NO_OFFSETS = memoryview(bytes(4))


def _header_column(rows: pa.RecordBatch) -> HeaderColumn | None:
    import pyarrow as pa

    kind = pa.list_(pa.struct([("key", pa.utf8()), ("value", pa.binary())]))
    column = _column(rows, "headers", kind)
    if column is None:
        return None
    validity, offsets = (None if buffer is None else memoryview(buffer) for buffer in column.buffers()[:2])
    # field() keeps the children whole; flatten() would drop entries of null lists and outside a slice.
    keys, values = (_from_zero(column.values.field(name)) for name in ("key", "value"))
    return HeaderColumn(validity, offsets or _NO_OFFSETS, _binary_buffers(keys), _binary_buffers(values))


def _from_zero(column: pa.Array) -> pa.Array:
    import pyarrow as pa

    return pa.concat_arrays([column, pa.nulls(0, column.type)]) if column.offset else column

"""Encoding and partitioning of Arrow columns: pure-Python fallback for _columns.pyx and its test oracle."""

from __future__ import annotations

from array import array

from headrace.records._kernel_pure import Span, partition_for_key
from headrace.records.batch import NO_TIMESTAMP, Buffer
from headrace.records.kernel_types import BinaryColumn, HeaderColumn
from headrace.records.varint import varint, varlong

_INT32_MAX = 2**31 - 1
_INT64_MIN = -(2**63)


class _Offsets:
    """The validity bits and offsets of a binary or list column, checked against the size of its data."""

    def __init__(self, validity: Buffer | None, offsets: Buffer, end_max: int) -> None:
        raw = memoryview(offsets).cast("B")
        self.offsets = raw[: len(raw) // 4 * 4].cast("i")
        self.validity = None if validity is None else memoryview(validity).cast("B")
        self.rows = len(self.offsets) - 1
        if self.validity is not None:
            self.rows = min(self.rows, 8 * len(self.validity))
        self.end_max = end_max

    def span(self, row: int) -> Span:
        if not 0 <= row < self.rows:
            raise IndexError(row)
        if self.validity is not None and not self.validity[row >> 3] >> (row & 7) & 1:
            return None
        begin, end = self.offsets[row], self.offsets[row + 1]
        if begin < 0 or end < begin or end > self.end_max:
            raise IndexError(row)
        return begin, end


class _Source:
    """A binary column to read from; a missing one is null in every row."""

    def __init__(self, column: BinaryColumn | None) -> None:
        self.data = memoryview(b"" if column is None else column.data).cast("B")
        self.offsets = None if column is None else _Offsets(column.validity, column.offsets, len(self.data))
        self.rows = 0 if self.offsets is None else self.offsets.rows

    def get(self, row: int) -> bytes | None:
        if self.offsets is None:
            return None
        span = self.offsets.span(row)
        return None if span is None else bytes(self.data[span[0] : span[1]])


class _Encoder:
    def __init__(
        self,
        timestamps: Buffer | None,
        base_timestamp: int,
        keys: BinaryColumn | None,
        values: BinaryColumn | None,
        headers: HeaderColumn | None,
    ) -> None:
        self.base_timestamp = base_timestamp
        self.timestamps = None
        if timestamps is not None:
            raw = memoryview(timestamps).cast("B")
            self.timestamps = raw[: len(raw) // 8 * 8].cast("q")
        self.keys, self.values = _Source(keys), _Source(values)
        self.header_keys = _Source(None if headers is None else headers.keys)
        self.header_values = _Source(None if headers is None else headers.values)
        entries = min(self.header_keys.rows, self.header_values.rows)
        self.lists = None if headers is None else _Offsets(headers.validity, headers.offsets, entries)

    def timestamp(self, row: int) -> int:
        if self.timestamps is None:
            return self.base_timestamp
        if not 0 <= row < len(self.timestamps):
            raise IndexError(row)
        return self.timestamps[row]

    def record(self, row: int, offset_delta: int) -> bytes:
        if self.base_timestamp == _INT64_MIN:  # -2^63 cannot be negated in 64 bits
            raise ValueError(row)
        parts = [b"\x00", varlong(self.timestamp(row) - self.base_timestamp), varint(offset_delta)]
        _put(parts, self.keys.get(row))
        _put(parts, self.values.get(row))
        span = None if self.lists is None else self.lists.span(row)
        first, end = span or (0, 0)
        parts.append(varint(end - first))
        for entry in range(first, end):
            name = self.header_keys.get(entry)
            if name is None:
                raise ValueError(row)
            _put(parts, name)
            _put(parts, self.header_values.get(entry))
        body = b"".join(parts)
        if len(body) > _INT32_MAX:
            raise ValueError(row)
        return varint(len(body)) + body


def _put(parts: list[bytes], content: bytes | None) -> None:
    parts.append(varint(-1) if content is None else varint(len(content)) + content)


def encode_columns(
    start: int,
    count: int,
    timestamps: Buffer | None,
    base_timestamp: int,
    keys: BinaryColumn | None,
    values: BinaryColumn | None,
    headers: HeaderColumn | None,
    bytes_max: int,
) -> tuple[bytearray, int, int]:
    """Encode rows from `start` on as a record section of at most `bytes_max` bytes, but at least one row.

    Return the section, the number of encoded rows, and their largest timestamp (at least -1). Raise ValueError if a row is invalid.
    """
    encoder = _Encoder(timestamps, base_timestamp, keys, values, headers)
    section = bytearray()
    max_timestamp = NO_TIMESTAMP
    rows = 0
    for row in range(count):
        try:
            record = encoder.record(start + row, row)
        except (IndexError, ValueError):
            raise ValueError(f"row {start + row} cannot be a record") from None
        if rows > 0 and len(section) + len(record) > bytes_max:
            break
        section += record
        rows += 1
        max_timestamp = max(max_timestamp, encoder.timestamp(start + row))
    return section, rows, max_timestamp


def partitions_for_keys(keys: BinaryColumn, start: int, count: int, partitions: int) -> bytearray:
    """Return the partition of every row's key as int32, -1 for a null key."""
    source = _Source(keys)
    if partitions <= 0:
        raise ValueError("a topic has at least one partition")
    if start < 0 or count < 0 or start > source.rows - count:
        raise ValueError(f"there are no {count} rows from {start} on")
    found = array("i")
    for row in range(start, start + count):
        try:
            key = source.get(row)
        except IndexError:
            raise ValueError(f"row {row} reaches beyond the data") from None
        found.append(-1 if key is None else partition_for_key(key, partitions))
    return bytearray(found)

"""Decoding of batches into Arrow column buffers: pure-Python fallback for _decode.pyx and its test oracle."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence

from headrace.records._kernel_pure import Span, read_fields
from headrace.records.batch import HEADER_BYTES, Buffer, CorruptBatch, read_header
from headrace.records.kernel_types import (
    COUNT_MISMATCH,
    HEADERS_COLUMN,
    KEYS_COLUMN,
    MALFORMED,
    OFFSETS_COLUMN,
    SECTION_BYTES_MAX,
    TIMESTAMP_TYPES_COLUMN,
    TIMESTAMPS_COLUMN,
    TRAILING_BYTES,
    VALUES_COLUMN,
    BinaryColumn,
    Columns,
    HeaderColumn,
    MalformedSection,
    ScannedBatch,
    Section,
)

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


class _Binary:
    """A binary column under construction."""

    def __init__(self) -> None:
        self.valid: list[bool] = []
        self.offsets = array("i", [0])
        self.data = bytearray()

    def put(self, section: memoryview, span: Span) -> None:
        self.valid.append(span is not None)
        if span is not None:
            self.data += section[span[0] : span[1]]
        self.offsets.append(len(self.data))

    def take(self) -> BinaryColumn:
        nulls = self.valid.count(False)
        validity = None
        if nulls:
            validity = bytearray((len(self.valid) + 7) // 8)
            for row, valid in enumerate(self.valid):
                validity[row >> 3] |= valid << (row & 7)
        return BinaryColumn(validity, bytearray(self.offsets), self.data, nulls)


def decode_columns(
    sections: Sequence[Section], columns: int, start_offset: int, end_offset: int, microseconds: bool = False
) -> Columns:
    """Decode the requested columns of all sections into Arrow's buffers.

    Keep the records with offsets from `start_offset` to before `end_offset`. Raise MalformedSection if a section is malformed, and
    ValueError if the sections exceed SECTION_BYTES_MAX.
    """
    size = sum(memoryview(section.records).nbytes for section in sections)
    if size > SECTION_BYTES_MAX:
        raise ValueError(f"{size} bytes of records are more than the {SECTION_BYTES_MAX} one decode takes")
    offsets, timestamps, timestamp_types, lists = array("q"), array("q"), array("i"), array("i", [0])
    keys, values, header_keys, header_values = _Binary(), _Binary(), _Binary(), _Binary()
    for number, section in enumerate(sections):
        for offset, timestamp, fields in _walk(number, section):
            if not start_offset <= offset < end_offset:
                continue
            offsets.append(offset)
            timestamps.append(_scaled(timestamp) if microseconds else timestamp)
            timestamp_types.append(section.append_time is not None)
            records, key, value, headers = fields
            keys.put(records, key)
            values.put(records, value)
            for name, content in headers:
                header_keys.put(records, name)
                header_values.put(records, content)
            lists.append(len(header_keys.valid))
    header_column = HeaderColumn(None, bytearray(lists), header_keys.take(), header_values.take())
    return Columns(
        len(offsets),
        bytearray(offsets) if columns & OFFSETS_COLUMN else None,
        bytearray(timestamps) if columns & TIMESTAMPS_COLUMN else None,
        keys.take() if columns & KEYS_COLUMN else None,
        values.take() if columns & VALUES_COLUMN else None,
        header_column if columns & HEADERS_COLUMN else None,
        bytearray(timestamp_types) if columns & TIMESTAMP_TYPES_COLUMN else None,
    )


_Fields = tuple[memoryview, Span, Span, Sequence[tuple[Span, Span]]]


def _walk(number: int, section: Section) -> Iterator[tuple[int, int, _Fields]]:
    records = memoryview(section.records).cast("B")
    position = 0
    for index in range(section.record_count):
        if position == len(records):
            raise MalformedSection(number, index, COUNT_MISMATCH)
        try:
            timestamp_delta, offset_delta, key, value, headers, position = read_fields(records, position)
        except CorruptBatch:
            raise MalformedSection(number, index, MALFORMED) from None
        offset = section.base_offset + offset_delta
        timestamp = section.append_time
        if timestamp is None:
            timestamp = section.base_timestamp + timestamp_delta
        if not (_INT64_MIN <= offset <= _INT64_MAX and _INT64_MIN <= timestamp <= _INT64_MAX):
            raise MalformedSection(number, index, MALFORMED)
        yield offset, timestamp, (records, key, value, headers)
    if position != len(records):
        raise MalformedSection(number, section.record_count, TRAILING_BYTES)


def _scaled(milliseconds: int) -> int:
    """Convert to microseconds; values outside the 64-bit range become the largest or smallest timestamp."""
    if abs(milliseconds) > _INT64_MAX // 1000:
        return _INT64_MAX if milliseconds > 0 else -_INT64_MAX
    return milliseconds * 1000


def scan_batches(buffer: Buffer) -> tuple[list[ScannedBatch], int]:
    """Return the whole batches (magic 2) at the start of the buffer, and the position after them.

    There the buffer ends, or a partial batch, an old format or something that is not a batch begins.
    """
    found: list[ScannedBatch] = []
    position = 0
    while len(buffer) - position >= HEADER_BYTES:
        try:
            header = read_header(buffer, position)
        except CorruptBatch:
            break
        if header.size > len(buffer) - position or header.last_offset > _INT64_MAX:
            break
        found.append(
            ScannedBatch(
                position,
                header.size,
                header.base_offset,
                header.last_offset,
                header.leader_epoch,
                header.magic,
                header.crc,
                header.attributes,
                header.base_timestamp,
                header.max_timestamp,
                header.producer_id,
                header.record_count,
            )
        )
        position += header.size
    return found, position


def reusable(size: int) -> memoryview:
    """Return a buffer of `size` bytes. The compiled function reuses buffers that are no longer referenced."""
    return memoryview(bytearray(size))

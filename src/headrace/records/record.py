"""Decoding of records one by one, for tools, tests and small internal batches; columns.py is for bulk work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from headrace.records.batch import (
    HEADER_BYTES,
    LOG_APPEND_TIME,
    BatchHeader,
    Buffer,
    CorruptBatch,
    check_crc,
    read_header,
)
from headrace.records.compression import decompress
from headrace.records.varint import read_varint, read_varlong

DECOMPRESSED_BYTES_MAX = 256 * 1024 * 1024
RECORD_BYTES_MIN = 7  # one byte each: length, attributes, two deltas, two null lengths, header count
_HEADER_BYTES_MIN = 2
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1

Headers = tuple[tuple[str, bytes | None], ...]


class Record(NamedTuple):
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


def record_section(batch: Buffer, header: BatchHeader, limit: int = DECOMPRESSED_BYTES_MAX) -> memoryview:
    """Return the decompressed records of the batch at the start of the buffer. Raise CorruptBatch if it is cut off."""
    if len(batch) < header.size:
        raise CorruptBatch(f"batch of {header.size} bytes is cut off after {len(batch)}")
    return memoryview(decompress(header.codec, memoryview(batch)[HEADER_BYTES : header.size], limit))


def decode_records(batch: Buffer, *, limit: int = DECOMPRESSED_BYTES_MAX, verify_crc: bool = True) -> Iterator[Record]:
    """Yield the records of the batch at the start of the buffer; raise CorruptBatch on reaching a malformed one."""
    header = read_header(batch)
    section = record_section(batch, header, limit)
    if verify_crc:
        check_crc(batch, 0, header)
    append_time = header.max_timestamp if header.attributes & LOG_APPEND_TIME else None
    position = 0
    for _ in range(header.record_count):
        record, position = read_record(section, position, header.base_offset, header.base_timestamp)
        yield record if append_time is None else record._replace(timestamp=append_time)
    if position != len(section):
        raise CorruptBatch(f"{len(section) - position} bytes follow the last of {header.record_count} records")


def read_record(section: memoryview, position: int, base_offset: int, base_timestamp: int) -> tuple[Record, int]:
    """Return the record at `position`, and the position after it."""
    length, position = read_varint(section, position)
    end = position + length
    if length < RECORD_BYTES_MIN - 1 or end > len(section):
        raise CorruptBatch(f"record of {length} bytes at {position} of {len(section)}")
    body = section[:end]
    timestamp_delta, position = read_varlong(body, position + 1)  # skips the attributes, which have no meaning yet
    offset_delta, position = read_varint(body, position)
    key, position = _read_bytes(body, position)
    value, position = _read_bytes(body, position)
    headers, position = _read_headers(body, position)
    if position != end:
        raise CorruptBatch(f"a record of {length} bytes has fields of {length - end + position}")
    offset, timestamp = base_offset + offset_delta, base_timestamp + timestamp_delta
    if not (_INT64_MIN <= offset <= _INT64_MAX and _INT64_MIN <= timestamp <= _INT64_MAX):
        raise CorruptBatch(f"record has offset {offset} and timestamp {timestamp}")
    return Record(offset, timestamp, key, value, headers), end


def _read_bytes(body: memoryview, position: int) -> tuple[bytes | None, int]:
    length, position = read_varint(body, position)
    if length < 0:
        return None, position
    if length > len(body) - position:
        raise CorruptBatch(f"field of {length} bytes reaches beyond its record")
    return bytes(body[position : position + length]), position + length


def _read_headers(body: memoryview, position: int) -> tuple[Headers, int]:
    count, position = read_varint(body, position)
    if count == 0:
        return (), position
    if count < 0 or count > (len(body) - position) // _HEADER_BYTES_MIN:
        raise CorruptBatch(f"a record claims {count} headers in {len(body) - position} bytes")
    headers = []
    for _ in range(count):
        key, position = _read_bytes(body, position)
        if key is None:
            raise CorruptBatch("header without a key")
        value, position = _read_bytes(body, position)
        headers.append((key.decode("utf-8", "replace"), value))
    return tuple(headers), position

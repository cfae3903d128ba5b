"""Validation and hashing of records: pure-Python fallback for _kernel.pyx and its test oracle."""

from __future__ import annotations

import struct

from headrace.records.batch import HEADER_BYTES, MAGIC, NO_TIMESTAMP, Buffer, CorruptBatch, unpack_header
from headrace.records.kernel_types import (
    COUNT_MISMATCH,
    MALFORMED,
    MISSING_KEY,
    OFFSET_NOT_SEQUENTIAL,
    OK,
    RECORD_ERRORS_MAX,
    TIMESTAMP_OUT_OF_RANGE,
    TRAILING_BYTES,
    ValidationResult,
)
from headrace.records.varint import read_varint, read_varlong

_RECORD_BYTES_MIN = 7
_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_INT32_BITS = 0xFFFFFFFF
_MURMUR_SEED = 0x9747B28C
_MURMUR_FACTOR = 0x5BD1E995

_REQUEST = struct.Struct(">hhih")  # API key, version, correlation id, client id length
_PRODUCE = struct.Struct(">BBhiBB")  # tags, transactional id (0: null), acks, timeout, topics, name length
_ARRAY_OF_ONE = 2  # a compact array's count is one more than its length
_UUID_BYTES = 16
_NO_TAGS = b"\x00\x00\x00"  # the empty tag sections of partition, topic and request

Span = tuple[int, int] | None  # start and end; None is null


def validate_records(
    records: Buffer, count: int, base_timestamp: int, require_keys: bool, timestamp_min: int, timestamp_max: int
) -> ValidationResult:
    """Validate a decompressed record section in one pass; see kernel_types.ValidationResult."""
    section = memoryview(records).cast("B")
    position = 0
    max_timestamp, max_timestamp_delta = NO_TIMESTAMP, -1
    errors: list[tuple[int, int]] = []
    for index in range(count):
        if position == len(section):
            return COUNT_MISMATCH, index, max_timestamp, max_timestamp_delta, ()
        try:
            timestamp_delta, offset_delta, key, _, _, position = read_fields(section, position)
        except CorruptBatch:
            return MALFORMED, index, max_timestamp, max_timestamp_delta, ()
        if offset_delta != index:
            return OFFSET_NOT_SEQUENTIAL, index, max_timestamp, max_timestamp_delta, ()
        timestamp = base_timestamp + timestamp_delta
        lowest, highest = max(timestamp_min, _INT64_MIN), min(timestamp_max, _INT64_MAX)
        if require_keys and key is None:
            errors.append((index, MISSING_KEY))
        elif timestamp != NO_TIMESTAMP and not lowest <= timestamp <= highest:
            errors.append((index, TIMESTAMP_OUT_OF_RANGE))
        elif timestamp > max_timestamp:
            max_timestamp, max_timestamp_delta = timestamp, index
    if position != len(section):
        return TRAILING_BYTES, count, max_timestamp, max_timestamp_delta, ()
    if not errors:
        return OK, -1, max_timestamp, max_timestamp_delta, ()
    named = tuple(errors[:RECORD_ERRORS_MAX])
    status = TIMESTAMP_OUT_OF_RANGE if any(status == TIMESTAMP_OUT_OF_RANGE for _, status in named) else MISSING_KEY
    return status, named[0][0], max_timestamp, max_timestamp_delta, named


def read_fields(section: memoryview, position: int) -> tuple[int, int, Span, Span, list[tuple[Span, Span]], int]:
    """Parse the record at `position` without copying; raise CorruptBatch if it is malformed.

    Return timestamp delta, offset delta, key, value, headers and end.
    """
    length, position = read_varint(section, position)
    end = position + length
    if length < _RECORD_BYTES_MIN - 1 or end > len(section):
        raise CorruptBatch("record reaches beyond the end")
    body = section[:end]
    timestamp_delta, position = read_varlong(body, position + 1)
    offset_delta, position = read_varint(body, position)
    key, position = _read_span(body, position)
    value, position = _read_span(body, position)
    header_count, position = read_varint(body, position)
    if header_count < 0:
        raise CorruptBatch("negative number of headers")
    headers: list[tuple[Span, Span]] = []
    for _ in range(header_count):  # too large a count fails at the end of the record
        name, position = _read_span(body, position)
        if name is None:
            raise CorruptBatch("header without a key")
        content, position = _read_span(body, position)
        headers.append((name, content))
    if position != end:
        raise CorruptBatch("record is longer than its fields")
    return timestamp_delta, offset_delta, key, value, headers, end


def _read_span(body: memoryview, position: int) -> tuple[Span, int]:
    length, position = read_varint(body, position)
    if length < 0:
        return None, position
    if length > len(body) - position:
        raise CorruptBatch("field reaches beyond its record")
    return (position, position + length), position + length


def inspect_plain_batch(
    batch: Buffer, require_keys: bool, timestamp_min: int, timestamp_max: int
) -> tuple[tuple[int, ...], int] | None:
    """Return the header fields and the actual largest timestamp of a valid batch without attributes, else None.

    The batch must be whole; without attributes it is neither compressed nor transactional. The checksum and the base offset
    are not checked.
    """
    if len(batch) <= HEADER_BYTES:
        return None
    header = unpack_header(batch)
    count = header.record_count
    if (
        header.magic != MAGIC
        or header.attributes
        or header.size != len(batch)
        or count <= 0
        or header.last_offset_delta != count - 1
        or (header.producer_id >= 0 and header.base_sequence < 0)
    ):
        return None
    section = memoryview(batch)[HEADER_BYTES:]
    status, _, max_timestamp, _, errors = validate_records(
        section, count, header.base_timestamp, require_keys, timestamp_min, timestamp_max
    )
    return None if status != OK or errors else (tuple(header), max_timestamp)


def split_single_produce(frame: Buffer) -> tuple[int, int, int, int, bytes, int, int] | None:
    """Split a Produce request of version 9 to 13 with one batch for one partition; return None for any other frame.

    The request must have acks 1 or all, no transactional id and no tags. Return version, correlation id, acks, timeout, the bytes
    that name the topic and partition, and the start and end of the batch.
    """
    try:
        api_key, version, correlation_id, client = _REQUEST.unpack_from(frame)
        at = _REQUEST.size + max(client, 0)
        tags, transactional_id, acks, timeout_ms, topics, name = _PRODUCE.unpack_from(frame, at)
        if (
            api_key
            or not 9 <= version <= 13
            or tags
            or transactional_id
            or acks not in (1, -1)
            or topics != _ARRAY_OF_ONE
        ):
            return None
        at += _PRODUCE.size - 1
        if version == 13:
            name = _UUID_BYTES
        if not 2 <= name <= 127 or frame[at + name] != _ARRAY_OF_ONE:
            return None
        key_end = at + name + 5  # includes the count of the partition array and the partition's index
        key = bytes(frame[at:key_end])
        size = shift = 0
        at = key_end
        for at in range(key_end + 1, key_end + 6):
            byte = frame[at - 1]
            size |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                break
        else:
            return None
    except (struct.error, IndexError):
        return None
    size &= _INT32_BITS
    end = len(frame) - len(_NO_TAGS)
    if size == 0 or at + size - 1 != end or frame[end:] != _NO_TAGS:
        return None
    return version, correlation_id, acks, timeout_ms, key, at, end


def murmur2(key: Buffer) -> int:
    """Return Kafka's hash of a key, a signed 32-bit number."""
    found = _hash(memoryview(key).cast("B"))
    return found - 2**32 if found >= 2**31 else found


def partition_for_key(key: Buffer, partitions: int) -> int:
    if partitions <= 0:
        raise ValueError("a topic has at least one partition")
    return (_hash(memoryview(key).cast("B")) & 0x7FFFFFFF) % partitions


def _hash(data: memoryview) -> int:
    length = len(data)
    mixed = _MURMUR_SEED ^ (length & _INT32_BITS)
    whole = length - length % 4
    for position in range(0, whole, 4):
        block = int.from_bytes(data[position : position + 4], "little")
        block = block * _MURMUR_FACTOR & _INT32_BITS
        block ^= block >> 24
        block = block * _MURMUR_FACTOR & _INT32_BITS
        mixed = mixed * _MURMUR_FACTOR & _INT32_BITS ^ block
    if length > whole:
        mixed ^= int.from_bytes(data[whole:], "little")
        mixed = mixed * _MURMUR_FACTOR & _INT32_BITS
    mixed ^= mixed >> 13
    mixed = mixed * _MURMUR_FACTOR & _INT32_BITS
    return mixed ^ mixed >> 15


def allocate(size: int) -> bytearray:
    """Return a bytearray for a decompressor to fill; the compiled function does not zero it."""
    return bytearray(size)

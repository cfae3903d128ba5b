"""The formats before record batches: messages of magic 0 and 1, found in the oldest segments of old Kafka logs.

They are read and never written. A message stands alone or wraps a compressed set of messages; a wrapper has the offset of its
last message. With magic 0 the inner offsets are absolute, with magic 1 they are relative to the first. `read_any_header` presents
a message as a batch whose only known offset is its last one, so that code that walks a log needs no special case.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from struct import error as StructError
from zlib import crc32

from headrace.records.batch import (
    CODEC_MASK,
    LENGTH_OVERHEAD_BYTES,
    LOG_APPEND_TIME,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    CorruptBatch,
    check_crc,
    peek_size_and_magic,
    read_header,
)
from headrace.records.compression import Codec, decompress
from headrace.records.record import DECOMPRESSED_BYTES_MAX, Record, decode_records

MAGIC_0, MAGIC_1 = 0, 1
MESSAGE_BYTES_MIN = 26  # size of a magic 0 message without key and value
NO_LEADER_EPOCH = -1
_MAGIC_AT = 16  # position of the magic in every format
_CHECKED_FROM = 16  # the checksum covers everything after itself
_MESSAGE = Struct(">qiIbb")  # offset, length, checksum, magic, attributes
_TIMESTAMP = Struct(">q")  # only in magic 1, after the attributes
_LENGTH = Struct(">i")
_FIXED_BYTES = {MAGIC_0: _MESSAGE.size, MAGIC_1: _MESSAGE.size + _TIMESTAMP.size}
_KNOWN_ATTRIBUTES = CODEC_MASK | LOG_APPEND_TIME
_CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)  # zstd is newer than these formats

_LZ4_HAS_CONTENT_SIZE = 0x08
_LZ4_MAGIC_BYTES = 4
_XXHASH_PRIMES = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1)
_UINT32 = 0xFFFFFFFF


def is_legacy(buffer: Buffer, position: int = 0) -> bool:
    return len(buffer) - position > _MAGIC_AT and buffer[position + _MAGIC_AT] in _FIXED_BYTES


def read_any_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Return the header of the batch or message at `position`. Raise CorruptBatch if it is neither."""
    return _read_message(buffer, position) if is_legacy(buffer, position) else read_header(buffer, position)


def iterate_any(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yield the positions and headers of the whole batches and messages in the buffer; skip a partial tail."""
    position = 0
    while len(buffer) - position > _MAGIC_AT and peek_size_and_magic(buffer, position)[0] <= len(buffer) - position:
        header = read_any_header(buffer, position)
        yield position, header
        position += header.size


def check_any_crc(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """Raise CorruptBatch if the checksum is wrong. The buffer must contain the whole batch or message."""
    if header.magic not in _FIXED_BYTES:
        check_crc(buffer, position, header)
        return
    found = crc32(memoryview(buffer)[position + _CHECKED_FROM : position + header.size])
    if found != header.crc:
        raise CorruptBatch(
            f"message at offset {header.base_offset}: checksum is {found:#010x}, its header has {header.crc:#010x}"
        )


def decode_any_records(batch: Buffer, *, limit: int = DECOMPRESSED_BYTES_MAX) -> Iterator[Record]:
    """Yield the records of the batch or message at the start of the buffer. Raise CorruptBatch if it is malformed."""
    if not is_legacy(batch):
        yield from decode_records(batch, limit=limit)
        return
    header = _read_message(batch, 0)
    if len(batch) < header.size:
        raise CorruptBatch(f"message of {header.size} bytes is cut off after {len(batch)}")
    check_any_crc(batch, 0, header)
    key, value = _key_and_value(memoryview(batch)[: header.size], header.magic)
    if header.codec == Codec.NONE:
        yield Record(header.base_offset, header.max_timestamp, key, value)
    else:
        yield from _unwrap(header, value, limit)


def _read_message(buffer: Buffer, position: int) -> BatchHeader:
    try:
        offset, length, crc, magic, attributes = _MESSAGE.unpack_from(buffer, position)
        timestamp = _TIMESTAMP.unpack_from(buffer, position + _MESSAGE.size)[0] if magic == MAGIC_1 else NO_TIMESTAMP
    except StructError:
        raise CorruptBatch(f"{len(buffer) - position} bytes are too few for a message") from None
    if length + LENGTH_OVERHEAD_BYTES < _FIXED_BYTES[magic] + 2 * _LENGTH.size:
        raise CorruptBatch(f"message length {length} is smaller than its fields")
    if offset < 0 or timestamp < NO_TIMESTAMP or attributes & CODEC_MASK >= len(_CODECS):
        raise CorruptBatch(f"message has offset {offset}, timestamp {timestamp} and attributes {attributes:#04x}")
    return BatchHeader(
        base_offset=offset,
        batch_length=length,
        leader_epoch=NO_LEADER_EPOCH,
        magic=magic,
        crc=crc,
        attributes=attributes & (_KNOWN_ATTRIBUTES if magic == MAGIC_1 else CODEC_MASK),
        last_offset_delta=0,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=NO_PRODUCER_ID,
        producer_epoch=NO_PRODUCER_EPOCH,
        base_sequence=NO_SEQUENCE,
        record_count=1,
    )


def _key_and_value(message: memoryview, magic: int) -> tuple[bytes | None, bytes | None]:
    key, position = _read_bytes(message, _FIXED_BYTES[magic])
    value, position = _read_bytes(message, position)
    if position != len(message):
        raise CorruptBatch(f"{len(message) - position} bytes follow the value of a message")
    return key, value


def _read_bytes(message: memoryview, position: int) -> tuple[bytes | None, int]:
    try:
        (length,) = _LENGTH.unpack_from(message, position)
    except StructError:
        raise CorruptBatch("a message ends before its fields do") from None
    position += _LENGTH.size
    if length < 0:
        return None, position
    if length > len(message) - position:
        raise CorruptBatch(f"field of {length} bytes reaches beyond its message")
    return bytes(message[position : position + length]), position + length


def _unwrap(wrapper: BatchHeader, value: bytes | None, limit: int) -> Iterator[Record]:
    if value is None:
        raise CorruptBatch(f"the compressed message at offset {wrapper.base_offset} has no value")
    if wrapper.codec == Codec.LZ4 and wrapper.magic == MAGIC_0:
        value = _repair_lz4_header(value)
    inner = memoryview(decompress(wrapper.codec, value, limit))
    messages: list[tuple[BatchHeader, memoryview]] = []
    position = 0
    while position < len(inner):
        if not is_legacy(inner, position) or inner[position + _MAGIC_AT] != wrapper.magic:
            raise CorruptBatch(f"the message at offset {wrapper.base_offset} wraps something of another format")
        header = _read_message(inner, position)
        if header.codec != Codec.NONE:
            raise CorruptBatch(f"the message at offset {wrapper.base_offset} wraps a message that is compressed again")
        if position + header.size > len(inner):
            raise CorruptBatch(f"the last message that offset {wrapper.base_offset} wraps is cut off")
        check_any_crc(inner, position, header)
        messages.append((header, inner[position : position + header.size]))
        position += header.size
    if not messages:
        raise CorruptBatch(f"the compressed message at offset {wrapper.base_offset} wraps nothing")
    # With magic 1 the client numbers the messages from 0; the broker sets only the wrapper's offset, that of the last message.
    first = wrapper.base_offset - messages[-1][0].base_offset if wrapper.magic == MAGIC_1 else 0
    append_time = wrapper.max_timestamp if wrapper.attributes & LOG_APPEND_TIME else None
    for header, message in messages:
        timestamp = header.max_timestamp if append_time is None else append_time
        yield Record(first + header.base_offset, timestamp, *_key_and_value(message, wrapper.magic))


def _repair_lz4_header(value: bytes) -> bytes:
    """Replace the frame's header checksum, which old clients computed over the wrong bytes (KAFKA-3160)."""
    if len(value) <= _LZ4_MAGIC_BYTES:
        raise CorruptBatch("compressed records are no LZ4 frame")
    end = _LZ4_MAGIC_BYTES + 2 + (8 if value[_LZ4_MAGIC_BYTES] & _LZ4_HAS_CONTENT_SIZE else 0)
    checksum = _xxhash32(value[_LZ4_MAGIC_BYTES:end]) >> 8 & 0xFF
    return value[:end] + bytes([checksum]) + value[end + 1 :]


def _xxhash32(data: bytes) -> int:
    """Return the XXH32 with seed 0 of fewer than 16 bytes."""
    assert len(data) < 16, "the long form has another beginning"
    first, second, third, fourth, fifth = _XXHASH_PRIMES
    hashed = fifth + len(data)
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        hashed = (hashed + int.from_bytes(data[at : at + 4], "little") * third) & _UINT32
        hashed = (_rotate(hashed, 17) * fourth) & _UINT32
    for byte in data[whole:]:
        hashed = (hashed + byte * fifth) & _UINT32
        hashed = (_rotate(hashed, 11) * first) & _UINT32
    hashed = ((hashed ^ hashed >> 15) * second) & _UINT32
    hashed = ((hashed ^ hashed >> 13) * third) & _UINT32
    return hashed ^ hashed >> 16


def _rotate(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _UINT32

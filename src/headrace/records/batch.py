"""The header of a record batch (magic 2), read and stamped in place.

A broker never takes a batch apart: it checks the header, stamps offset and leader epoch into the very bytes that came in,
and those bytes rest on disk and go out again. Offset and epoch lie outside the checksum for that reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from headrace.base.errors import CorruptData

Buffer = bytes | bytearray | memoryview

HEADER_BYTES = 61
LENGTH_OVERHEAD_BYTES = 12  # base offset and length field: what batch_length does not count
CRC_START = 21  # the checksum covers everything from the attributes on
MAGIC = 2

CODEC_MASK = 0x07
LOG_APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1
NO_TIMESTAMP = -1
SEQUENCE_MAX = 0x7FFFFFFF

_HEADER = Struct(">qiibIhiqqqhii")
_LENGTH_AND_MAGIC = Struct(">i4xb")  # from byte 8 on
_STAMP = Struct(">qii")  # base offset, length, leader epoch
_CRC = Struct(">I")
_ATTRIBUTES = Struct(">h")
_TIMESTAMP = Struct(">q")


class CorruptBatch(CorruptData):
    """Bytes that are no record batch: too short, a wrong length, an unknown magic, a checksum that does not fit."""


class BatchHeader(NamedTuple):
    base_offset: int
    batch_length: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size(self) -> int:
        return self.batch_length + LENGTH_OVERHEAD_BYTES

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def next_offset(self) -> int:
        # Never by record_count: compaction removes records and keeps the offsets.
        return self.base_offset + self.last_offset_delta + 1

    @property
    def codec(self) -> int:
        return self.attributes & CODEC_MASK

    @property
    def last_sequence(self) -> int:
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return advance_sequence(self.base_sequence, self.last_offset_delta)

    @property
    def is_transactional(self) -> bool:
        return bool(self.attributes & TRANSACTIONAL)

    @property
    def is_control(self) -> bool:
        return bool(self.attributes & CONTROL)


_make_header = BatchHeader._make


def advance_sequence(sequence: int, by: int) -> int:
    """Sequences run from 0 to 2^31-1 and start again at 0."""
    return (sequence + by) & SEQUENCE_MAX


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`, with its structure checked; the batch itself may reach beyond the buffer (see `size`)."""
    if len(buffer) - position < HEADER_BYTES:
        raise CorruptBatch(f"{len(buffer) - position} bytes are too few for a batch header of {HEADER_BYTES}")
    header = BatchHeader._make(_HEADER.unpack_from(buffer, position))
    if header.magic != MAGIC:
        raise CorruptBatch(f"batch has magic {header.magic}, only {MAGIC} is supported")
    if header.batch_length < HEADER_BYTES - LENGTH_OVERHEAD_BYTES:
        raise CorruptBatch(f"batch length {header.batch_length} is smaller than a header")
    if header.last_offset_delta < 0 or header.record_count < 0:
        raise CorruptBatch(f"batch has {header.record_count} records and last offset delta {header.last_offset_delta}")
    return header


def unpack_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Unchecked: for whoever checks it himself."""
    return _make_header(_HEADER.unpack_from(buffer, position))


def peek_size_and_magic(buffer: Buffer, position: int) -> tuple[int, int]:
    """Total size and magic of what stands at `position`, of any format: needs 17 bytes."""
    length, magic = _LENGTH_AND_MAGIC.unpack_from(buffer, position + 8)
    return length + LENGTH_OVERHEAD_BYTES, magic


def checksum(buffer: Buffer, position: int, size: int) -> int:
    return crc32c(memoryview(buffer)[position + CRC_START : position + size])


def check_crc(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """The whole batch must lie in the buffer."""
    found = checksum(buffer, position, header.size)
    if found != header.crc:
        raise CorruptBatch(
            f"batch at offset {header.base_offset}: checksum is {found:#010x}, header says {header.crc:#010x}"
        )


def stamp(
    buffer: bytearray | memoryview, position: int, header: BatchHeader, base_offset: int, leader_epoch: int
) -> None:
    """What the leader decides about a batch; both lie outside the checksum. One call for the three fields: the length stays."""
    _STAMP.pack_into(buffer, position, base_offset, header.batch_length, leader_epoch)


def stamp_append_time(buffer: bytearray | memoryview, position: int, header: BatchHeader, now_ms: int) -> None:
    """message.timestamp.type=LogAppendTime: the attributes and the largest timestamp change, so the checksum does."""
    _ATTRIBUTES.pack_into(buffer, position + 21, header.attributes | LOG_APPEND_TIME)
    _TIMESTAMP.pack_into(buffer, position + 35, now_ms)
    _CRC.pack_into(buffer, position + 17, checksum(buffer, position, header.size))


def iterate_batches(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Positions and headers of the whole batches in the buffer; a partial tail, which a fetch may have, is passed over."""
    position = 0
    while len(buffer) - position >= HEADER_BYTES:
        header = read_header(buffer, position)
        if position + header.size > len(buffer):
            return
        yield position, header
        position += header.size


def pack_header(header: BatchHeader) -> bytes:
    return _HEADER.pack(*header)

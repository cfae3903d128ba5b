"""The header of a record batch (magic 2), read and stamped in place.

A broker does not rebuild a batch: it checks it, stamps offset and leader epoch into the received bytes, stores those bytes and
sends them to consumers. That is why offset and epoch are outside the checksum.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from headrace.base.errors import CorruptData

Buffer = bytes | bytearray | memoryview

HEADER_BYTES = 61
LENGTH_OVERHEAD_BYTES = 12  # base offset and length field, which batch_length does not count
CRC_START = 21  # position of the attributes, where the checksummed part begins
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
_LENGTH_AND_MAGIC = Struct(">i4xb")  # at byte 8
_STAMP = Struct(">qii")  # base offset, length, leader epoch
_CRC = Struct(">I")
_ATTRIBUTES = Struct(">h")
_TIMESTAMP = Struct(">q")


class CorruptBatch(CorruptData):
    """Bytes that are not a valid record batch: too short, or with a wrong length, magic, checksum or structure."""


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
        # Not based on record_count: compaction removes records but keeps the offsets.
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
    """Advance a sequence number; sequence numbers run from 0 to 2^31-1 and wrap around to 0."""
    return (sequence + by) & SEQUENCE_MAX


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """Read the header at `position` and check its structure; raise CorruptBatch if it is malformed.

    The batch itself may extend beyond the buffer (see `size`).
    """
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
    """Read the header at `position` without any check."""
    return _make_header(_HEADER.unpack_from(buffer, position))


def peek_size_and_magic(buffer: Buffer, position: int) -> tuple[int, int]:
    """Return the total size and the magic of the batch or message at `position`, which must have at least 17 bytes."""
    length, magic = _LENGTH_AND_MAGIC.unpack_from(buffer, position + 8)
    return length + LENGTH_OVERHEAD_BYTES, magic


def checksum(buffer: Buffer, position: int, size: int) -> int:
    return crc32c(memoryview(buffer)[position + CRC_START : position + size])


def check_crc(buffer: Buffer, position: int, header: BatchHeader) -> None:
    """Raise CorruptBatch if the checksum is wrong. The buffer must contain the whole batch."""
    found = checksum(buffer, position, header.size)
    if found != header.crc:
        raise CorruptBatch(
            f"batch at offset {header.base_offset}: checksum is {found:#010x}, the header has {header.crc:#010x}"
        )


def stamp(
    buffer: bytearray | memoryview, position: int, header: BatchHeader, base_offset: int, leader_epoch: int
) -> None:
    """Write base offset and leader epoch, which are outside the checksum, into the batch.

    The length between them is rewritten unchanged, so that one call suffices.
    """
    _STAMP.pack_into(buffer, position, base_offset, header.batch_length, leader_epoch)


def stamp_append_time(buffer: bytearray | memoryview, position: int, header: BatchHeader, now_ms: int) -> None:
    """Set the timestamp type LogAppendTime and the largest timestamp, and update the checksum."""
    _ATTRIBUTES.pack_into(buffer, position + 21, header.attributes | LOG_APPEND_TIME)
    _TIMESTAMP.pack_into(buffer, position + 35, now_ms)
    _CRC.pack_into(buffer, position + 17, checksum(buffer, position, header.size))


def iterate_batches(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """Yield positions and headers of the whole batches in the buffer; skip a partial tail, which a fetch may have."""
    position = 0
    while len(buffer) - position >= HEADER_BYTES:
        header = read_header(buffer, position)
        if position + header.size > len(buffer):
            return
        yield position, header
        position += header.size


def pack_header(header: BatchHeader) -> bytes:
    return _HEADER.pack(*header)

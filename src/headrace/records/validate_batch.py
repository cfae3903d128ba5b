"""The leader's checks of a produced batch before it is appended; the error codes are Kafka's.

The caller checks what depends on the topic and the request: sizes, zstd's minimum version, the producer's state.
Runs once per produced batch: 1.5 us for a small uncompressed one.
"""

from __future__ import annotations

from typing import NamedTuple, NoReturn

from crc32c import crc32c

from headrace.base.errors import ErrorCode, KafkaError
from headrace.records import batch as layout
from headrace.records.batch import CODEC_MASK, CRC_START, HEADER_BYTES, BatchHeader, Buffer, CorruptBatch
from headrace.records.compression import Codec, TooLarge, decompress
from headrace.records.kernel import validate_records
from headrace.records.kernel_types import (
    COUNT_MISMATCH,
    MALFORMED,
    MISSING_KEY,
    OFFSET_NOT_SEQUENTIAL,
    OK,
    TIMESTAMP_OUT_OF_RANGE,
    TRAILING_BYTES,
)

THREAD_BYTES_MIN = 64 * 1024  # larger compressed batches take so long that they are checked off the event loop
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
_CODEC_MAX = int(Codec.ZSTD)
_REFUSED_ATTRIBUTES = layout.CONTROL | layout.LOG_APPEND_TIME
_PEEK_BYTES = 17
_LENGTH_MIN = 14  # length of the smallest message of the oldest format

_REASONS = {
    MALFORMED: "its length and its fields do not fit",
    COUNT_MISMATCH: "the batch ends before it",
    TRAILING_BYTES: "bytes follow the last record",
    OFFSET_NOT_SEQUENTIAL: "its offset does not follow the one before it",
    MISSING_KEY: "a compacted topic takes no record without a key",
    TIMESTAMP_OUT_OF_RANGE: "its timestamp is out of range",
}


class InvalidRecords(KafkaError):
    """Invalid records, for which the whole batch is refused; Produce 8 and later name them to the client."""

    def __init__(self, code: ErrorCode, message: str, record_errors: list[tuple[int, str]]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors


class Checked(NamedTuple):
    records: Buffer  # the record section, decompressed
    max_timestamp: int  # the actual one, regardless of the header
    max_timestamp_delta: int  # offset delta of the first record with it, -1 if no record has a timestamp
    # batch to append instead, if the topic requires another codec
    converted: tuple[memoryview, BatchHeader] | None = None


def needs_thread(header: BatchHeader, *, converts: bool = False) -> bool:
    """Return whether the batch should be checked in a thread.

    The compression libraries and the kernel release the GIL, so the event loop keeps running.
    """
    return (converts or header.attributes & CODEC_MASK != 0) and header.batch_length > THREAD_BYTES_MIN


def read_produced_header(records: Buffer) -> BatchHeader:
    """Return the header of the one batch (magic 2) that a Produce request has for a partition; else raise KafkaError.

    As in Kafka, an incomplete second batch after it is allowed; the caller cuts it off.
    """
    size = len(records)
    if size >= HEADER_BYTES:
        header = layout.unpack_header(records)
        if header.batch_length + layout.LENGTH_OVERHEAD_BYTES == size and header.magic == layout.MAGIC:
            return header
    return _look_closer(records)


def _look_closer(records: Buffer) -> BatchHeader:
    size = _whole_batch(records, 0)
    if size is None:
        raise KafkaError(ErrorCode.INVALID_RECORD, "the request contains no complete record batch")
    magic = records[layout.LENGTH_OVERHEAD_BYTES + 4]
    if magic != layout.MAGIC:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"the batch has magic {magic}, only {layout.MAGIC} is accepted")
    if _whole_batch(records, size) is not None:
        raise KafkaError(ErrorCode.INVALID_RECORD, "only one batch per partition is accepted")
    if size < HEADER_BYTES:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"a batch of {size} bytes is smaller than its header")
    return layout.unpack_header(records)


def _whole_batch(records: Buffer, position: int) -> int | None:
    """Return the size of the batch at `position`, of any format; None if it is incomplete.

    Raise KafkaError for an invalid length or magic. The order of the checks is Kafka's.
    """
    left = len(records) - position
    if left < layout.LENGTH_OVERHEAD_BYTES:
        return None
    length = int.from_bytes(records[position + 8 : position + 12], "big", signed=True)
    if length < _LENGTH_MIN:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"a batch of length {length}; {_LENGTH_MIN} is the least")
    if left < _PEEK_BYTES:
        return None
    size, magic = layout.peek_size_and_magic(records, position)
    if not 0 <= magic <= layout.MAGIC:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"unknown magic {magic}")
    return size if size <= left else None


def check_produced_batch(
    batch: memoryview,
    header: BatchHeader,
    *,
    max_decompressed_bytes: int,
    require_keys: bool,
    timestamp_min: int,
    timestamp_max: int,
) -> Checked:
    """Validate exactly one batch with its header; raise KafkaError, or InvalidRecords for bad records.

    A record timestamp of -1 means no timestamp and is within any range.
    """
    if header.batch_length + layout.LENGTH_OVERHEAD_BYTES != len(batch):
        raise KafkaError(ErrorCode.INVALID_RECORD, f"the batch claims {header.size} bytes, {len(batch)} were received")
    if header.base_offset != 0:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"the batch begins at offset {header.base_offset} instead of 0")
    if crc32c(batch[CRC_START:]) != header.crc:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the batch's checksum is wrong")
    count = header.record_count
    attributes = header.attributes
    if count <= 0 or count != header.last_offset_delta + 1:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"the batch has {count} records and last offset delta {header.last_offset_delta}"
        )
    if attributes & _REFUSED_ATTRIBUTES:
        _refuse_attributes(attributes)
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise KafkaError(
            ErrorCode.INVALID_RECORD, f"producer {header.producer_id} sent base sequence {header.base_sequence}"
        )
    records: Buffer = batch[HEADER_BYTES:]
    if attributes & CODEC_MASK:
        records = _decompress(attributes & CODEC_MASK, records, max_decompressed_bytes)
    if timestamp_max > INT64_MAX:
        timestamp_max = INT64_MAX
    if timestamp_min < INT64_MIN:
        timestamp_min = INT64_MIN
    status, index, max_timestamp, max_timestamp_delta, errors = validate_records(
        records, count, header.base_timestamp, require_keys, timestamp_min, timestamp_max
    )
    if status != OK:
        _refuse_records(status, index, errors)
    return Checked(records, max_timestamp, max_timestamp_delta)


def _refuse_attributes(attributes: int) -> NoReturn:
    if attributes & layout.CONTROL:
        raise KafkaError(ErrorCode.INVALID_RECORD, "clients may not write control batches")
    raise KafkaError(ErrorCode.INVALID_TIMESTAMP, "only the broker sets the timestamp type LogAppendTime")


def _decompress(codec: int, records: Buffer, limit: int) -> Buffer:
    if codec > _CODEC_MAX:
        raise KafkaError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"unknown codec {codec}")
    try:
        return decompress(codec, records, limit)
    except TooLarge as error:
        # The producer reacts to this error by splitting the batch, which helps here.
        raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE, str(error)) from None
    except CorruptBatch as error:
        # Not CORRUPT_MESSAGE, which is retriable: the checksum was right, so every retry would send the same bytes.
        raise KafkaError(ErrorCode.INVALID_RECORD, str(error)) from None


def _refuse_records(status: int, index: int, errors: tuple[tuple[int, int], ...]) -> NoReturn:
    code = ErrorCode.INVALID_TIMESTAMP if status == TIMESTAMP_OUT_OF_RANGE else ErrorCode.INVALID_RECORD
    if not errors:  # a structural error: like Kafka, name no records
        raise InvalidRecords(code, f"record {index}: {_REASONS[status]}", [])
    named = [(bad, _REASONS[reason]) for bad, reason in errors]
    raise InvalidRecords(code, f"record {index}: {_REASONS[errors[0][1]]}", named)

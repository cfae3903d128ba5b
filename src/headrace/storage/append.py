"""Steps around the write of batches: checking a leader's batches, stamping, replaying into the producer state."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from headrace.base.errors import HeadraceError
from headrace.records.batch import (
    LOG_APPEND_TIME,
    BatchHeader,
    Buffer,
    CorruptBatch,
    check_crc,
    checksum,
    iterate_batches,
)
from headrace.records.control import TransactionMarker, parse_control_batch, parse_marker
from headrace.storage.producer_state import CompletedTransaction, ProducerState

_ATTRIBUTES_AT, _MAX_TIMESTAMP_AT, _CRC_AT = 21, 35, 17
_ATTRIBUTES = Struct(">h")
_MAX_TIMESTAMP = Struct(">q")
_CRC = Struct(">I")


class UnexpectedBatch(HeadraceError):
    """A leader sent batches that do not continue this log: the offset or the leader epoch goes back."""


class AppendInfo(NamedTuple):
    first_offset: int
    last_offset: int
    # -1 unless the broker stamped the time; for a duplicate always the timestamp of the first append, as in Kafka.
    log_append_time: int
    duplicate: bool  # True if nothing was written; the offsets are then those of the first append
    completed: CompletedTransaction | None = None


class FollowerBatches(NamedTuple):
    headers: list[BatchHeader]
    size: int  # bytes of the whole batches; excludes a partial batch at the end, which a fetch may leave


def analyze_follower(buffer: Buffer, log_end: int, latest_epoch: int) -> FollowerBatches:
    """Check what a leader sent: structure, checksums, ascending offsets and epochs.

    Raise CorruptBatch or UnexpectedBatch if a check fails.
    """
    headers = []
    size = 0
    next_offset, epoch = log_end, latest_epoch
    for position, header in iterate_batches(buffer):
        check_crc(buffer, position, header)
        if header.base_offset < next_offset:
            raise UnexpectedBatch(f"batch begins at offset {header.base_offset}, the log ends at {next_offset}")
        if header.leader_epoch < epoch:
            raise UnexpectedBatch(
                f"batch at offset {header.base_offset} has leader epoch {header.leader_epoch} after {epoch}"
            )
        next_offset, epoch = header.next_offset, header.leader_epoch
        headers.append(header)
        size = position + header.size
    return FollowerBatches(headers, size)


def stamp_max_timestamp(batch: bytearray | memoryview, header: BatchHeader, max_timestamp: int) -> None:
    """Correct the largest timestamp of a batch whose client claimed one that none of its records has."""
    _ATTRIBUTES.pack_into(batch, _ATTRIBUTES_AT, header.attributes & ~LOG_APPEND_TIME)
    _MAX_TIMESTAMP.pack_into(batch, _MAX_TIMESTAMP_AT, max_timestamp)
    _CRC.pack_into(batch, _CRC_AT, checksum(batch, 0, header.size))


def transaction_marker(batch: Buffer) -> TransactionMarker | None:
    """Return a control batch's marker; None if it ends no transaction or the cleaner has removed its record."""
    for record in parse_control_batch(batch):
        return parse_marker(record)
    return None


def replay_batch(producers: ProducerState, header: BatchHeader, batch: Buffer | None) -> CompletedTransaction | None:
    """Apply a batch of the log to the producer state and return the transaction it completes, if any.

    The batch is not checked: the leader did that before it was written. `batch` may be None only for data batches.
    """
    if header.producer_id < 0:
        return None
    if not header.is_control:
        producers.appended(header, header.base_offset, header.max_timestamp)
        return None
    if batch is None:
        raise CorruptBatch(f"control batch at {header.base_offset} without its bytes")
    marker = transaction_marker(batch)
    if marker is None:
        return None
    return producers.ended(header, marker, header.base_offset, header.max_timestamp)

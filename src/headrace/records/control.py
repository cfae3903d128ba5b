"""Control records: transaction markers and the control records of raft logs (KIP-98, KIP-595, KIP-630, KIP-853)."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

from headrace.records.batch import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    Buffer,
    CorruptBatch,
    read_header,
    stamp,
    unpack_header,
)
from headrace.records.builder import BatchBuilder
from headrace.records.record import decode_records


class ControlType(IntEnum):
    ABORT = 0
    COMMIT = 1
    LEADER_CHANGE = 2
    SNAPSHOT_HEADER = 3
    SNAPSHOT_FOOTER = 4
    KRAFT_VERSION = 5
    KRAFT_VOTERS = 6


class ControlRecord(NamedTuple):
    type: int  # a ControlType, or the type of a later version, whose records must be skipped
    value: bytes


class ParsedControlRecord(NamedTuple):
    offset: int
    timestamp: int
    type: int
    value: bytes


class TransactionMarker(NamedTuple):
    commit: bool
    coordinator_epoch: int


CONTROL_VERSION = 0
MARKER_CACHE_SIZE = 16
_KEY = Struct(">hh")
_MARKER_VALUE = Struct(">hi")


def control_key(control_type: int) -> bytes:
    return _KEY.pack(CONTROL_VERSION, control_type)


def build_control_batch(
    records: Sequence[ControlRecord],
    *,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    transactional: bool = False,
) -> bytearray:
    builder = BatchBuilder()
    for record in records:
        builder.append(timestamp, control_key(record.type), record.value)
    if builder.count == 0:
        raise ValueError("a batch needs a record")
    return builder.build(
        base_offset=base_offset,
        leader_epoch=leader_epoch,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transactional=transactional,
        control=True,
    )


def build_marker(
    marker: TransactionMarker,
    *,
    producer_id: int,
    producer_epoch: int,
    timestamp: int,
    base_offset: int = 0,
    leader_epoch: int = -1,
) -> bytearray:
    batch = bytearray(_marker_batch(marker, producer_id, producer_epoch, timestamp))
    stamp(batch, 0, unpack_header(batch), base_offset, leader_epoch)
    return batch


@lru_cache(MARKER_CACHE_SIZE)
def _marker_batch(marker: TransactionMarker, producer_id: int, producer_epoch: int, timestamp: int) -> bytes:
    """Return the marker batch at offset 0.

    Cached for all partitions of a transaction: their markers differ only in fields outside the checksum.
    """
    control_type = ControlType.COMMIT if marker.commit else ControlType.ABORT
    value = _MARKER_VALUE.pack(CONTROL_VERSION, marker.coordinator_epoch)
    return bytes(
        build_control_batch(
            [ControlRecord(control_type, value)],
            timestamp=timestamp,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            transactional=True,
        )
    )


def parse_control_type(key: bytes | None) -> int:
    """Return the type in a control record's key, which has the same two first fields in later versions."""
    if key is None or len(key) < _KEY.size:
        raise CorruptBatch("control record without a type")
    version, control_type = _KEY.unpack_from(key)
    if version < CONTROL_VERSION:
        raise CorruptBatch(f"control record has version {version}")
    return int(control_type)


def parse_control_batch(batch: Buffer) -> list[ParsedControlRecord]:
    header = read_header(batch)
    if not header.is_control:
        raise CorruptBatch(f"batch at {header.base_offset} contains no control records")
    return [
        ParsedControlRecord(record.offset, record.timestamp, parse_control_type(record.key), record.value or b"")
        for record in decode_records(batch)
    ]


def parse_marker(record: ParsedControlRecord) -> TransactionMarker | None:
    """Parse a transaction marker; return None if the control record has another type."""
    if record.type not in (ControlType.ABORT, ControlType.COMMIT):
        return None
    if len(record.value) < _MARKER_VALUE.size:
        raise CorruptBatch(f"transaction marker of {len(record.value)} bytes")
    version, coordinator_epoch = _MARKER_VALUE.unpack_from(record.value)
    if version < CONTROL_VERSION:
        raise CorruptBatch(f"transaction marker has version {version}")
    return TransactionMarker(record.type == ControlType.COMMIT, coordinator_epoch)

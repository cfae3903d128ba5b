"""Prepared logs of 50 GB that occupy 1 GB of disk: the sealed segments are sparse between their first and last batch.

Both servers read only the ends and the indexes of a sealed segment. The active segment is complete, because every batch
of it is checked after a crash. Files, names and checkpoints are those that either server leaves behind.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from struct import Struct

from bench.errors import CannotRun
from bench.load.frames import Batch, make_batch, records_that_fit
from headrace.base.ids import TopicPartition
from headrace.records.batch import read_header
from headrace.storage.checkpoints import (
    HIGH_WATERMARK_CHECKPOINT,
    LEADER_EPOCH_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    encode_leader_epochs,
    encode_offsets,
)
from headrace.storage.leader_epochs import EpochStart
from headrace.storage.names import INDEX_SUFFIX, LOG_SUFFIX, TIME_INDEX_SUFFIX, segment_name, snapshot_name
from headrace.storage.producer_snapshots import encode_snapshot

SEGMENT_BYTES = 1 << 30  # log.segment.bytes
BATCH_BYTES = 64 * 1024
VALUE_BYTES = 1024
WRITE_BATCHES = 64  # batches per write
_OFFSET = Struct(">q")
_EPOCH_AT = 12
_EPOCH = Struct(">i")
_INDEX_ENTRY = Struct(">ii")
_TIME_ENTRY = Struct(">qi")


@dataclass(frozen=True)
class PreparedLog:
    active_base: int  # base offset of the active segment
    log_end: int


def prepare_partition(directory: Path, segments: int, active_bytes: int) -> PreparedLog:
    """Replace the log files of an empty partition with sealed segments and an active one of `active_bytes`."""
    for path in directory.iterdir():
        if path.suffix in (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX):
            path.unlink()
    batch = make_batch(records_that_fit(BATCH_BYTES, VALUE_BYTES), VALUE_BYTES)
    sealed_batches = SEGMENT_BYTES // batch.size
    base = 0
    for _ in range(segments):
        _write_sealed_segment(directory, base, batch, sealed_batches)
        base += sealed_batches * batch.records
    batches = active_bytes // batch.size
    _write_active_segment(directory, base, batch, batches)
    log_end = base + batches * batch.records
    for offset in (base, log_end):
        (directory / snapshot_name(offset)).write_bytes(encode_snapshot(()))
    (directory / LEADER_EPOCH_CHECKPOINT).write_bytes(encode_leader_epochs([EpochStart(0, 0)]))
    return PreparedLog(base, log_end)


def write_checkpoints(data_dir: Path, topic: str, recovery_points: Mapping[int, int], ends: Mapping[int, int]) -> None:
    """Write recovery points and high watermarks by partition.

    The high watermark is the log end because there is no other replica.
    """
    for name, offsets in ((RECOVERY_POINT_CHECKPOINT, recovery_points), (HIGH_WATERMARK_CHECKPOINT, ends)):
        entries = {TopicPartition(topic, partition): offset for partition, offset in offsets.items()}
        (data_dir / name).write_bytes(encode_offsets(entries))


def _at_offset(batch: Batch, offset: int) -> bytes:
    """Return the batch with this offset and leader epoch 0; both are outside the checksum."""
    data = bytearray(batch.data)
    _OFFSET.pack_into(data, 0, offset)
    _EPOCH.pack_into(data, _EPOCH_AT, 0)
    return bytes(data)


def _write_sealed_segment(directory: Path, base: int, batch: Batch, batches: int) -> None:
    path = directory / segment_name(base, LOG_SUFFIX)
    last = batches - 1
    with path.open("wb") as file:
        file.write(_at_offset(batch, base))
        file.seek(last * batch.size)
        file.write(_at_offset(batch, base + last * batch.records))
    if path.stat().st_blocks * 512 > path.stat().st_size // 2:
        path.unlink()
        raise CannotRun("the file system does not support sparse files")
    _write_indexes(directory, base, batch, batches)
    if base:
        (directory / snapshot_name(base)).write_bytes(encode_snapshot(()))


def _write_active_segment(directory: Path, base: int, batch: Batch, batches: int) -> None:
    with (directory / segment_name(base, LOG_SUFFIX)).open("wb") as file:
        for number in range(0, batches, WRITE_BATCHES):
            some = range(number, min(number + WRITE_BATCHES, batches))
            file.write(b"".join(_at_offset(batch, base + one * batch.records) for one in some))
        file.flush()
        os.fdatasync(file.fileno())  # so that no server's start pays for the writeback
    _write_indexes(directory, base, batch, batches)


def _write_indexes(directory: Path, base: int, batch: Batch, batches: int) -> None:
    """Write an offset index entry for each batch but the first, and a single time index entry.

    Batches larger than index.interval.bytes get one offset entry each, and all records have the same timestamp.
    """
    entries = (_INDEX_ENTRY.pack((number + 1) * batch.records - 1, number * batch.size) for number in range(1, batches))
    (directory / segment_name(base, INDEX_SUFFIX)).write_bytes(b"".join(entries))
    times = _TIME_ENTRY.pack(read_header(batch.data).max_timestamp, batch.records - 1)
    (directory / segment_name(base, TIME_INDEX_SUFFIX)).write_bytes(times)

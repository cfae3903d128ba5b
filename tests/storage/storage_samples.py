"""Batches and logs for the tests of this package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.base.ids import TopicPartition
from headrace.records.batch import iterate_batches, read_header
from headrace.records.builder import build_batch
from headrace.records.control import TransactionMarker, build_marker
from headrace.records.record import Record
from headrace.storage.append import AppendInfo
from headrace.storage.disk import DiskFiles
from headrace.storage.log import Log
from headrace.storage.log_config import LogConfig
from headrace.storage.recovery import RecoveryReport

NOW_MS = 1_700_000_000_000
PARTITION = TopicPartition("orders", 0)
SMALL = LogConfig(segment_bytes=2000, index_interval_bytes=200, producer_id_expiration_ms=10**15)


def make_batch(timestamps: list[int] | int = 1, *, value: bytes = b"v" * 20, **options: Any) -> bytearray:
    """Build a batch with that many records at NOW_MS, or with one for each timestamp."""
    if isinstance(timestamps, int):
        timestamps = [NOW_MS] * timestamps
    return build_batch([Record(0, timestamp, b"k", value) for timestamp in timestamps], **options)


def open_log(path: Path, config: LogConfig = SMALL, **options: Any) -> tuple[Log, RecoveryReport]:
    options.setdefault("now_ms", NOW_MS)
    files = options.pop("files", None) or DiskFiles()
    return Log.open(files, str(path / str(PARTITION)), PARTITION, config, **options)


def append(log: Log, batch: bytearray, epoch: int = 0, **options: Any) -> AppendInfo:
    return log.append_as_leader(batch, read_header(batch), epoch, NOW_MS, **options)


def append_marker(log: Log, producer_id: int, producer_epoch: int, *, commit: bool, **options: Any) -> AppendInfo:
    coordinator_epoch = options.pop("coordinator_epoch", 0)
    marker = TransactionMarker(commit, coordinator_epoch)
    batch = build_marker(marker, producer_id=producer_id, producer_epoch=producer_epoch, timestamp=NOW_MS)
    return append(log, batch, check_producer=False, **options)


def stored_batches(log: Log) -> list[tuple[int, int, bytes]]:
    """Return the first offset, last offset and bytes of each batch from the log start on."""
    found: list[tuple[int, int, bytes]] = []
    offset = log.log_start
    while offset < log.log_end:
        data = log.read(offset, 1 << 20).range.read()
        if not data:
            break
        for position, header in iterate_batches(data):
            found.append((header.base_offset, header.last_offset, data[position : position + header.size]))
            offset = header.next_offset
    return found


def sync(log: Log) -> None:
    plan = log.pending_sync()
    if plan is not None:
        plan.run()
        log.synced(plan)


def segment_files(path: Path, suffix: str) -> list[Path]:
    return sorted((path / str(PARTITION)).glob(f"*{suffix}"))


def flip_bit(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)

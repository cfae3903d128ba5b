"""Keyed logs for the compaction tests, and what must remain of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.storage.storage_samples import NOW_MS, PARTITION, open_log

from headrace.records.batch import DELETE_HORIZON, BatchHeader, check_crc, read_header
from headrace.records.builder import build_batch
from headrace.records.legacy import decode_any_records
from headrace.records.record import Record
from headrace.storage.compaction.cleaner import CleanerLimits, CleanerStats, Cleaning, Replacement
from headrace.storage.compaction.decisions import cleanable, plan_cleaning
from headrace.storage.compaction.swap import Swap
from headrace.storage.log import Log
from headrace.storage.log_config import LogConfig
from headrace.storage.segments.scan import scan_batches

HOUR_MS = 3_600_000
LIMITS = CleanerLimits(map_bytes=1 << 20, load_factor=0.9, chunk_bytes=4096, step_bytes=8192)
SECRET = bytes(range(16))
COMPACTED = LogConfig(
    cleanup_policy=("compact",),
    segment_bytes=2000,
    index_interval_bytes=200,
    producer_id_expiration_ms=10**15,
    delete_retention_ms=HOUR_MS,
    min_cleanable_dirty_ratio=0.0,
)


def keyed_log(path: Path, config: LogConfig = COMPACTED, **options: Any) -> Log:
    return open_log(path, config, **options)[0]


def put(log: Log, *pairs: tuple[bytes, bytes | None], timestamp: int = NOW_MS, **options: Any) -> int:
    """Append one batch of keys and values and return its first offset."""
    batch = build_batch([Record(0, timestamp, key, value) for key, value in pairs], **options)
    return log.append_as_leader(batch, read_header(batch), 0, NOW_MS).first_offset


def clean(log: Log, now_ms: int = NOW_MS, limits: CleanerLimits = LIMITS, end: int | None = None) -> CleanerStats:
    """Run a whole cleaning with its swaps, as the node does."""
    found = cleanable(log, log.last_stable_offset(log.log_end) if end is None else end, now_ms)
    plan = plan_cleaning(log, found)
    cleaning = Cleaning(plan, limits, SECRET, now_ms)
    for step in cleaning.steps():
        if isinstance(step, Replacement):
            swap = Swap(plan, step)
            assert swap.begin()
            swap.sync()
            assert swap.replace(now_ms)
            swap.sync()
            swap.finish()
    log.cleaned_to = cleaning.cleaned_to
    log.check()
    return cleaning.stats


def batches(log: Log) -> list[tuple[BatchHeader, list[Record]]]:
    """Return all batches after checking every checksum."""
    found: list[tuple[BatchHeader, list[Record]]] = []
    for segment in log.segments:
        for _, header, batch in scan_batches(segment.file, segment.size):
            if header.magic == 2:
                check_crc(batch, 0, header)
            found.append((header, list(decode_any_records(batch))))
    return found


def data_records(log: Log) -> list[Record]:
    return [record for header, records in batches(log) if not header.is_control for record in records]


def horizons(log: Log) -> list[int]:
    return [header.base_timestamp for header, _ in batches(log) if header.attributes & DELETE_HORIZON]


def newest_by_key(records: list[Record]) -> dict[bytes | None, Record]:
    return {record.key: record for record in records}


def log_directory(path: Path) -> Path:
    return path / str(PARTITION)

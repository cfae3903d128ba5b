"""The data directory of the line `open-50g`: valid where the node reads it, and errors in it are detected."""

from __future__ import annotations

from pathlib import Path

import pytest
from bench.broker.opening import OpenLarge
from bench.broker.prepared_logs import SEGMENT_BYTES, PreparedLog, prepare_partition
from bench.errors import BenchFailed
from bench.line import Options
from bench.systems.servers import HEADRACE, Broker, spawn_headrace

from headrace.base.ids import TopicPartition
from headrace.storage.disk import DiskFiles
from headrace.storage.log import Log
from headrace.storage.log_config import LogConfig
from headrace.storage.recovery import RecoveryReport

SEGMENTS = 2
ACTIVE_BYTES = 1_000_000
NOW_MS = 1_800_000_000_000


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "t-0"
    made.mkdir()
    return made


def open_log(directory: Path, recovery_point: int, *, clean: bool) -> tuple[int, RecoveryReport]:
    """Return the log's end and the recovery report."""
    partition = TopicPartition("t", 0)
    log, report = Log.open(
        DiskFiles(), str(directory), partition, LogConfig(), recovery_point=recovery_point, clean=clean, now_ms=NOW_MS
    )
    try:
        assert log.log_start == 0
        return log.log_end, report
    finally:
        log.close()


def test_prepared_segments_are_sparse_and_open_without_repairs(directory: Path) -> None:
    log = prepare_partition(directory, SEGMENTS, ACTIVE_BYTES)
    files = list(directory.glob("*.log"))
    assert sum(path.stat().st_size for path in files) > 2 * SEGMENT_BYTES * 0.99
    assert sum(path.stat().st_blocks for path in files) * 512 < 3_000_000
    end, report = open_log(directory, log.log_end, clean=True)
    assert (end, report.segments_checked, report.messages()) == (log.log_end, 0, [])
    end, report = open_log(directory, log.active_base, clean=False)
    assert (end, report.segments_checked, report.messages()) == (log.log_end, 1, [])


def test_recovery_after_a_kill_detects_corrupt_unsynced_batches(directory: Path) -> None:
    log = prepare_partition(directory, SEGMENTS, ACTIVE_BYTES)
    with max(directory.glob("*.log")).open("r+b") as file:
        file.seek(ACTIVE_BYTES // 2)
        file.write(b"not what was written here")
    end, report = open_log(directory, log.active_base, clean=False)
    assert log.active_base < end < log.log_end
    assert len(report.cuts) == 1


def test_opening_fails_if_the_log_ends_before_the_prepared_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = Broker(HEADRACE, tmp_path / "unused", spawn_headrace)
    options = Options(work=tmp_path, open_partitions=1, open_segments=1, open_active_bytes=ACTIVE_BYTES)

    def prepare_with_wrong_log_end(directory: Path, segments: int, active_bytes: int) -> PreparedLog:
        log = prepare_partition(directory, segments, active_bytes)
        return PreparedLog(log.active_base, log.log_end + 1)

    monkeypatch.setattr("bench.broker.opening.prepare_partition", prepare_with_wrong_log_end)
    with pytest.raises(BenchFailed, match="got their next record at"):
        OpenLarge().measure(broker, "t", options)

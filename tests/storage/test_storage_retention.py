"""Retention by size, by time and below the log start; when files are removed, and readers that still use them."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec
import pytest
from tests.storage.storage_samples import NOW_MS, SMALL, append, make_batch, open_log, stored_batches, sync

from headrace.base.errors import ErrorCode, KafkaError
from headrace.storage import retention
from headrace.storage.disk import DiskFiles
from headrace.storage.log import Log
from headrace.storage.log_config import LogConfig
from headrace.storage.retention import enforce

KEEP_ALL = msgspec.structs.replace(SMALL, retention_ms=-1, retention_bytes=-1)
MINUTE_MS = 60_000


def make_log(path: Path, segments: int, config: LogConfig = KEEP_ALL, **options: object) -> Log:
    """Return a log whose segments have two records each, a minute newer than those of the segment before."""
    log, _ = open_log(path, config, **options)
    for number in range(segments):
        if number:
            log.roll(NOW_MS)
        append(log, make_batch([NOW_MS + number * MINUTE_MS] * 2))
    return log


def reconfigure(log: Log, **options: object) -> Log:
    log.configure(msgspec.structs.replace(log.config, **options))
    return log


def enforce_all(log: Log, now_ms: int = NOW_MS, high_watermark: int | None = None) -> list[str]:
    deletions: list[str] = []
    while (one := enforce(log, log.log_end if high_watermark is None else high_watermark, now_ms)) is not None:
        deletions.append(one)
    log.check()
    return deletions


def file_names(log: Log) -> list[str]:
    return sorted(os.listdir(log.directory))


def test_retention_bytes_deletes_the_oldest_segments_but_keeps_that_many_bytes(tmp_path: Path) -> None:
    log = make_log(tmp_path, 5)
    one = log.segments.first.size
    reconfigure(log, retention_bytes=3 * one)
    (deletions,) = enforce_all(log)
    assert deletions == f"orders-0: deleted offsets 0 to 3: retention.bytes={3 * one}"
    assert (log.log_start, log.segments.base_offsets()) == (4, [4, 6, 8])
    reconfigure(log, retention_bytes=3 * one - 1)
    assert enforce_all(log) == []  # deleting another segment would leave too little
    reconfigure(log, retention_bytes=0)
    assert len(enforce_all(log)) == 1
    assert (log.log_start, log.log_end, len(log.segments), log.size) == (10, 10, 1, 0)  # even the active segment goes
    assert append(log, make_batch()).first_offset == 10


def test_retention_ms_applies_to_the_newest_record_of_a_segment(tmp_path: Path) -> None:
    log = reconfigure(make_log(tmp_path, 4), retention_ms=MINUTE_MS)
    assert enforce_all(log, NOW_MS + MINUTE_MS) == []
    assert len(enforce_all(log, NOW_MS + MINUTE_MS + 1)) == 1
    assert log.log_start == 2
    append(log, make_batch([NOW_MS - 10 * MINUTE_MS]))  # an old record in the newer active segment changes nothing
    assert enforce_all(log, NOW_MS + 4 * MINUTE_MS) != []
    assert log.log_start == 6
    assert enforce_all(log, NOW_MS + 4 * MINUTE_MS + 1) != []
    assert (log.log_start, log.log_end, len(log.segments)) == (9, 9, 1)


def test_a_segment_with_future_timestamps_blocks_the_deletion_of_later_ones(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path, KEEP_ALL)
    append(log, make_batch([NOW_MS + 999 * MINUTE_MS]))
    log.roll(NOW_MS)
    append(log, make_batch([NOW_MS]))
    reconfigure(log, retention_ms=0)
    assert enforce_all(log, NOW_MS + MINUTE_MS) == []


def test_retention_uses_the_file_time_of_segments_without_timestamps(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path, KEEP_ALL)
    append(log, make_batch([-1]))
    written_ms = log.segments.active.modified_ms()
    reconfigure(log, retention_ms=MINUTE_MS)
    assert enforce_all(log, written_ms + MINUTE_MS) == []
    assert enforce_all(log, written_ms + MINUTE_MS + 1) != []


def test_retention_deletes_nothing_above_the_high_watermark(tmp_path: Path) -> None:
    log = reconfigure(make_log(tmp_path, 5), retention_bytes=0)
    assert len(enforce_all(log, high_watermark=5)) == 1
    assert log.log_start == 4


@pytest.mark.parametrize(
    "policy, goes", [(("delete",), True), (("compact", "delete"), True), (("compact",), False), ((), False)]
)
def test_retention_applies_only_with_cleanup_policy_delete(tmp_path: Path, policy: tuple[str, ...], goes: bool) -> None:
    log = reconfigure(make_log(tmp_path, 3), retention_bytes=0, retention_ms=0, cleanup_policy=policy)
    log.advance_log_start(3)
    deletions = enforce_all(log, NOW_MS + 999 * MINUTE_MS)
    assert deletions[0] == "orders-0: deleted offsets 0 to 1: the log starts at 3"  # regardless of the policy
    assert (len(deletions) > 1, log.log_start) == ((True, 6) if goes else (False, 3))


def test_many_segments_are_deleted_in_several_steps(tmp_path: Path) -> None:
    log = reconfigure(make_log(tmp_path, 2 * retention.SEGMENTS_AT_ONCE + 1), retention_bytes=0)
    assert len(enforce_all(log)) == 3


def test_deleted_files_are_renamed_at_once_and_removed_after_the_delay(tmp_path: Path) -> None:
    log = reconfigure(make_log(tmp_path, 4), retention_bytes=1, file_delete_delay_ms=500)
    read = log.read(1, 1000)
    expected = read.range.read()
    enforce_all(log)
    renamed = [name for name in file_names(log) if name.endswith(".deleted")]
    assert {name.split(".", 1)[1] for name in renamed} == {
        "log.deleted",
        "index.deleted",
        "timeindex.deleted",
        "snapshot.deleted",
    }
    assert not any(name.startswith(f"{2:020d}.") and not name.endswith(".deleted") for name in file_names(log))
    assert read.range.read() == expected  # a reader that found it earlier can still read it
    assert log.deletion_queue.take(NOW_MS + 499) == []
    for deleted in log.deletion_queue.take(NOW_MS + 500):
        deleted.remove()
    assert not any(name.endswith(".deleted") for name in file_names(log))
    assert len(log.deletion_queue) == 0


def test_deleted_segments_stay_readable_after_their_descriptors_are_evicted(tmp_path: Path) -> None:
    files = DiskFiles(open_files_max=2)
    log = reconfigure(make_log(tmp_path, 4, files=files), retention_bytes=0)
    ranges = [log.read(offset, 1000).range for offset in (0, 2, 4)]
    enforce_all(log)
    assert all(len(one.read()) == one.size for one in ranges * 3)


def test_a_crash_between_the_renames_of_a_deletion_is_recovered(tmp_path: Path) -> None:
    log = make_log(tmp_path, 3)
    expected = stored_batches(log)[1:]
    sync(log)
    log.abandon()
    first = f"{log.directory}/{0:020d}"
    os.rename(f"{first}.log", f"{first}.log.deleted")
    log, _ = open_log(tmp_path, KEEP_ALL, recovery_point=6)
    assert (log.log_start, stored_batches(log)) == (2, expected)
    assert not any(name.startswith(f"{0:020d}") for name in file_names(log))


def test_a_log_reopens_at_its_log_start_after_retention(tmp_path: Path) -> None:
    log = reconfigure(make_log(tmp_path, 4), retention_bytes=1)
    append(log, make_batch(1, producer_id=4, producer_epoch=0, base_sequence=0))
    enforce_all(log)
    start, end, expected = log.log_start, log.log_end, stored_batches(log)
    log.close()
    log, report = open_log(tmp_path, KEEP_ALL, recovery_point=end, clean=True)
    assert report.messages() == []
    assert (log.log_start, log.log_end, stored_batches(log)) == (start, end, expected)
    assert log.producers.entry(4) is not None


def test_a_sync_in_progress_tolerates_the_deletion_of_segments(tmp_path: Path) -> None:
    log = reconfigure(make_log(tmp_path, 4), retention_bytes=1, file_delete_delay_ms=0)
    plan = log.pending_sync()
    assert plan is not None
    enforce_all(log)
    for deleted in log.deletion_queue.take(NOW_MS):
        deleted.remove()
    plan.run()
    log.synced(plan)
    assert log.recovery_point == log.log_end


def test_files_that_cannot_be_renamed_on_a_full_disk_are_still_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = reconfigure(make_log(tmp_path, 3), retention_bytes=1, file_delete_delay_ms=0)

    def full(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", target)

    monkeypatch.setattr("headrace.storage.disk.os.replace", full)
    enforce_all(log)
    monkeypatch.undo()
    for deleted in log.deletion_queue.take(NOW_MS):
        deleted.remove()
    assert file_names(log) == [f"{4:020d}.log", f"{4:020d}.snapshot"]


def test_advancing_the_log_start_beyond_the_log_end_is_out_of_range(tmp_path: Path) -> None:
    log = make_log(tmp_path, 2)
    with pytest.raises(KafkaError) as caught:
        log.advance_log_start(5)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.advance_log_start(3) and not log.advance_log_start(2)
    assert (log.log_start, log.recovery_point) == (3, 3)

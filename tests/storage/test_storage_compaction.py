"""Compaction of one log: what stays, what goes, and when; the files remain what readers and Kafka expect."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.storage.compaction_samples import (
    COMPACTED,
    HOUR_MS,
    LIMITS,
    batches,
    clean,
    data_records,
    horizons,
    keyed_log,
    log_directory,
    newest_by_key,
    put,
)
from tests.storage.storage_samples import NOW_MS, append_marker, flip_bit, stored_batches, sync

from headrace.base.errors import CorruptData
from headrace.records.batch import NO_TIMESTAMP
from headrace.records.compression import Codec
from headrace.storage.compaction.cleaner import Cleaning, Replacement
from headrace.storage.compaction.decisions import GROUP_SEGMENTS_MAX, cleanable, group_segments, plan_cleaning
from headrace.storage.compaction.swap import Swap


def test_compaction_keeps_only_the_last_record_of_a_key(tmp_path: Path) -> None:
    log = keyed_log(tmp_path)
    for number in range(100):
        put(log, (b"one", b"%d" % number))
    log.roll(NOW_MS)
    clean(log)
    assert [(record.offset, record.value) for record in data_records(log)] == [(99, b"99")]
    assert log.log_end == 100 and log.log_start == 0
    # Each segment extends to the start of the next, with an empty batch if necessary.
    assert [one.next_offset for one in log.segments][:-1] == log.segments.base_offsets()[1:]
    ends = {header.next_offset for header, _ in batches(log)}
    assert ends == set(log.segments.base_offsets()[1:])


def test_the_active_segment_and_records_above_the_last_stable_offset_are_not_compacted(tmp_path: Path) -> None:
    log = keyed_log(tmp_path)
    for number in range(60):
        put(log, (b"k%d" % (number % 3), b"old"))
    log.roll(NOW_MS)
    put(log, (b"k0", b"open"), producer_id=5, producer_epoch=0, base_sequence=0, transactional=True)
    log.roll(NOW_MS)
    put(log, (b"k0", b"young"))
    put(log, (b"k0", b"younger"))
    clean(log)
    assert log.cleaned_to == 60
    kept = [record.value for record in data_records(log) if record.key == b"k0"]
    assert kept == [b"old", b"open", b"young", b"younger"]
    append_marker(log, 5, 0, commit=True)
    log.roll(NOW_MS)
    clean(log)
    assert [record.value for record in data_records(log) if record.key == b"k0"] == [b"younger"]


def test_tombstones_get_a_delete_horizon_and_are_removed_after_it(tmp_path: Path) -> None:
    log = keyed_log(tmp_path)
    put(log, (b"a", b"1"), (b"b", b"1"))
    put(log, (b"a", None), (b"b", b"2"))
    log.roll(NOW_MS)
    clean(log)
    assert [(record.key, record.value) for record in data_records(log)] == [(b"a", None), (b"b", b"2")]
    assert horizons(log) == [NOW_MS + HOUR_MS]
    assert {record.timestamp for record in data_records(log)} == {NOW_MS}  # although encoded relative to the horizon
    put(log, (b"c", b"1"))
    log.roll(NOW_MS)
    clean(log, NOW_MS + HOUR_MS - 1)
    assert horizons(log) == [NOW_MS + HOUR_MS]  # the horizon of the first cleaning stays
    put(log, (b"c", b"2"))
    log.roll(NOW_MS)
    clean(log, NOW_MS + HOUR_MS)
    assert [(record.key, record.value) for record in data_records(log)] == [(b"b", b"2"), (b"c", b"2")]
    assert {record.timestamp for record in data_records(log)} == {NOW_MS}


@pytest.mark.parametrize("codec", list(Codec))
def test_compacted_batches_keep_their_codec_and_unaffected_ones_their_bytes(tmp_path: Path, codec: Codec) -> None:
    log = keyed_log(tmp_path)
    put(log, (b"gone", b"1" * 50), (b"kept", b"2" * 50), codec=codec)
    put(log, (b"gone", b"3" * 50), (b"also kept", b"4" * 50), codec=codec)
    log.roll(NOW_MS)
    whole = stored_batches(log)[1]
    clean(log)
    first, second = batches(log)
    assert first[0].codec == second[0].codec == codec
    assert [record.value for record in first[1]] == [b"2" * 50]
    assert (first[0].base_offset, first[0].last_offset, first[0].record_count) == (0, 1, 1)
    assert stored_batches(log)[1] == whole


def test_the_last_batch_of_a_producer_is_kept_empty_to_preserve_its_state(tmp_path: Path) -> None:
    log = keyed_log(tmp_path)
    put(log, (b"a", b"1"), producer_id=7, producer_epoch=2, base_sequence=0)
    put(log, (b"a", b"2"), (b"b", b"2"), producer_id=7, producer_epoch=2, base_sequence=1)
    put(log, (b"a", b"3"), (b"b", b"3"))
    log.roll(NOW_MS)
    clean(log)
    empty = [header for header, records in batches(log) if not records]
    assert [(one.base_offset, one.last_offset, one.base_sequence, one.producer_id) for one in empty] == [(1, 2, 1, 7)]
    assert empty[0].base_timestamp == NO_TIMESTAMP and empty[0].max_timestamp == NOW_MS
    sync(log)
    log.close()
    for path in log_directory(tmp_path).glob("*.snapshot"):
        path.unlink()
    log = keyed_log(tmp_path, clean=True)
    entry = log.producers.entry(7)
    assert entry is not None and (entry.epoch, entry.last_sequence, entry.last_offset) == (2, 2, 2)


def test_aborted_records_are_removed_at_once_and_their_markers_later(tmp_path: Path) -> None:
    log = keyed_log(tmp_path)
    put(log, (b"a", b"0"))
    put(log, (b"a", b"1"), producer_id=1, producer_epoch=0, base_sequence=0, transactional=True)
    put(log, (b"a", b"2"), producer_id=2, producer_epoch=0, base_sequence=0, transactional=True)
    append_marker(log, 1, 0, commit=False)
    append_marker(log, 2, 0, commit=True)
    put(log, (b"b", b"3"), producer_id=1, producer_epoch=1, base_sequence=0, transactional=True)
    append_marker(log, 1, 1, commit=False)
    log.roll(NOW_MS)
    clean(log)
    assert [(record.key, record.value) for record in data_records(log)] == [(b"a", b"2")]
    markers = [header for header, _ in batches(log) if header.is_control]
    assert [one.base_offset for one in markers] == [3, 4, 6] and horizons(log) == []
    assert [one.last_offset for one in log.aborted_transactions(0, 100)] == [
        3,
        6,
    ]  # readers that have already started need them
    put(log, (b"a", b"4"))
    log.roll(NOW_MS)
    clean(log)
    # No batch of the first transaction is left. The empty last batches of both producers are, so their markers are needed.
    assert horizons(log) == [NOW_MS + HOUR_MS]

    def markers_left(now_ms: int) -> list[int]:
        put(log, (b"a", b"5"))
        log.roll(NOW_MS)
        clean(log, now_ms)
        return [header.base_offset for header, _ in batches(log) if header.is_control]

    assert markers_left(NOW_MS + HOUR_MS) == [4, 6]
    assert [one.last_offset for one in log.aborted_transactions(0, 100)] == [6]
    log.producers.expire(NOW_MS + 10**16, 1)
    assert markers_left(NOW_MS) == [4, 6] and horizons(log) == []  # the run drops the empty batches but still sees them
    assert markers_left(NOW_MS) == [4, 6] and horizons(log) == [NOW_MS + HOUR_MS] * 2
    assert log.aborted_transactions(0, 100) == []
    assert markers_left(NOW_MS + HOUR_MS) == []
    assert [record.value for record in data_records(log)] == [b"5"]


def test_records_without_a_key_are_removed(tmp_path: Path) -> None:
    log = keyed_log(tmp_path, replace(COMPACTED, cleanup_policy=("delete",)))
    put(log, (b"a", b"1"))
    log.append_as_follower(_keyless(1), NOW_MS)
    put(log, (b"b", b"2"))
    log.configure(COMPACTED)
    log.roll(NOW_MS)
    clean(log)
    assert [record.key for record in data_records(log)] == [b"a", b"b"]


def _keyless(offset: int) -> bytes:
    from headrace.records.builder import build_batch
    from headrace.records.record import Record

    return bytes(build_batch([Record(0, NOW_MS, None, b"none")], base_offset=offset, leader_epoch=0))


def test_a_small_offset_map_needs_several_cleaning_runs(tmp_path: Path) -> None:
    log = keyed_log(tmp_path)
    for turn in range(3):
        for number in range(200):
            put(log, (b"key-%d" % number, b"%d" % turn))
    log.roll(NOW_MS)
    expected = newest_by_key(data_records(log))
    small = replace(LIMITS, map_bytes=64 * 24)
    runs = 0
    while log.cleaned_to < 600:
        runs += 1
        assert clean(log, limits=small).keys <= 57
        assert newest_by_key(data_records(log)) == expected
    assert 5 < runs < 30 and len(data_records(log)) == 200


def test_the_cleanable_range_follows_the_dirty_ratio_and_compaction_lags(tmp_path: Path) -> None:
    log = keyed_log(tmp_path, replace(COMPACTED, min_cleanable_dirty_ratio=0.5))
    for number in range(40):
        put(log, (b"k%d" % number, b"v" * 50), timestamp=NOW_MS + number * 1000)
    log.roll(NOW_MS)
    found = cleanable(log, 40, NOW_MS)
    assert (found.first_dirty, found.end, found.dirty_ratio) == (0, 40, 1.0) and found.is_due(log.config)
    clean(log)
    assert not cleanable(log, 40, NOW_MS).is_due(log.config)
    for number in range(10):
        put(log, (b"k%d" % number, b"w" * 50), timestamp=NOW_MS + number * 1000)
    log.roll(NOW_MS)
    found = cleanable(log, log.log_end, NOW_MS)
    assert 0.1 < found.dirty_ratio < 0.5 and not found.is_due(log.config)
    log.configure(replace(log.config, max_compaction_lag_ms=60_000))
    assert cleanable(log, log.log_end, NOW_MS + 60_001).is_due(log.config)
    assert not cleanable(log, log.log_end, NOW_MS + 50_000).is_due(log.config)
    log.configure(replace(log.config, min_compaction_lag_ms=60_000))
    assert cleanable(log, log.log_end, NOW_MS + 60_000).end == 40  # the last of the new records is nine seconds younger
    assert cleanable(log, log.log_end, NOW_MS + 69_001).end == log.log_end
    assert cleanable(log, 39, NOW_MS).end <= 40  # records above the last stable offset stay
    log.cleaned_to = 10**6
    assert cleanable(log, log.log_end, NOW_MS).first_dirty == 0  # a checkpoint beyond the log end is ignored


def test_small_segments_are_merged_up_to_the_size_and_count_limits(tmp_path: Path) -> None:
    log = keyed_log(tmp_path, replace(COMPACTED, segment_bytes=600))
    for number in range(90):
        put(log, (b"k%d" % (number % 5), b"v" * 40))
    log.roll(NOW_MS)
    before = len(log.segments)
    clean(log)  # groups go by the old sizes: segments first shrink, and are merged by the next run
    assert len(log.segments) == before
    put(log, (b"k0", b"v"))
    log.roll(NOW_MS)
    clean(log)
    assert len(log.segments) < before // 2
    assert all(one.size <= 600 for one in log.segments)
    sealed = [one for one in log.segments if one is not log.segments.active]
    wide = replace(COMPACTED, segment_bytes=2**31 - 1)
    assert next(len(group) for group in group_segments(sealed * 100, wide)) == GROUP_SEGMENTS_MAX
    narrow = replace(wide, segment_index_bytes=0)  # as if every index were too large
    assert len(list(group_segments(sealed, narrow))) > 1 == len(list(group_segments(sealed, wide)))


def test_a_read_in_progress_survives_the_replacement_of_its_segment(tmp_path: Path) -> None:
    log = keyed_log(tmp_path)
    for number in range(30):
        put(log, (b"k", b"%d" % number))
    log.roll(NOW_MS)
    held = log.read(3, 400).range
    before = held.read()
    clean(log)
    assert held.read() == before
    for deleted in log.deletion_queue.take(NOW_MS + log.config.file_delete_delay_ms):
        deleted.remove()
    names = {path.name for path in log_directory(tmp_path).iterdir()}
    assert not any(name.endswith((".deleted", ".swap", ".cleaned")) for name in names)
    assert {name for name in names if name.endswith(".log")} == {
        f"{base:020d}.log" for base in log.segments.base_offsets()
    }


def test_cleaned_segments_are_discarded_if_the_log_changed_meanwhile(tmp_path: Path) -> None:
    for change in ("truncated", "deleted", "cut in the swap"):
        path = tmp_path / change
        path.mkdir()
        log = keyed_log(path)
        for number in range(30):
            put(log, (b"k", b"%d" % number))
        log.roll(NOW_MS)
        put(log, (b"k", b"last"))
        plan = plan_cleaning(log, cleanable(log, 30, NOW_MS))
        steps = Cleaning(plan, LIMITS, bytes(16), NOW_MS).steps()
        swap = Swap(plan, next(step for step in steps if isinstance(step, Replacement)))
        if change == "truncated":
            log.truncate_to(20, NOW_MS)
            assert not swap.begin()
        elif change == "deleted":
            log.delete_oldest(1, NOW_MS)
            assert not swap.begin()
        else:
            assert swap.begin()
            log.truncate_to(20, NOW_MS)
            assert not swap.replace(NOW_MS)
        steps.close()  # type: ignore[attr-defined]
        names = {one.name for one in log_directory(path).iterdir()}
        assert not any(name.endswith((".swap", ".cleaned")) for name in names)
        log.check()


def test_cleaning_a_damaged_log_raises_corrupt_data_and_changes_no_file(tmp_path: Path) -> None:
    log = keyed_log(tmp_path)
    put(log, (b"k", b"1"), (b"l", b"1"))
    put(log, (b"k", b"2"), (b"m", b"1"))
    log.roll(NOW_MS)
    before = [path.read_bytes() for path in sorted(log_directory(tmp_path).glob("*.log"))]
    for position in (67, 58, 30):  # a record's length, the record count, a checksum that does not match
        flip_bit(log_directory(tmp_path) / f"{0:020d}.log", position)
        with pytest.raises(CorruptData):
            clean(log)
        flip_bit(log_directory(tmp_path) / f"{0:020d}.log", position)
    assert [path.read_bytes() for path in sorted(log_directory(tmp_path).glob("*.log"))] == before
    assert not list(log_directory(tmp_path).glob("*.cleaned"))
    clean(log)


def test_the_active_segment_rolls_after_max_compaction_lag_ms(tmp_path: Path) -> None:
    log = keyed_log(tmp_path, replace(COMPACTED, max_compaction_lag_ms=5000))
    put(log, (b"k", b"1"))
    put(log, (b"k", b"2"), timestamp=NOW_MS + 5000)
    assert len(log.segments) == 1
    put(log, (b"k", b"3"), timestamp=NOW_MS + 5001)
    assert len(log.segments) == 2


def test_a_merged_segment_has_the_modification_time_of_its_last_source(tmp_path: Path) -> None:
    """Check the file's time: retention uses it where no record is left to date the segment."""
    log = keyed_log(tmp_path)
    for number in range(2):
        put(log, (b"k", b"%d" % number))
        log.roll(NOW_MS)
    put(log, (b"k", b"last"))
    log.roll(NOW_MS)
    for number, segment in enumerate(log.segments):
        log.files.set_modified_ms(segment.file.path, NOW_MS + number)
    clean(log)
    assert [segment.base_offset for segment in log.segments] == [0, 3]
    assert log.segments.first.modified_ms() == NOW_MS + 2

"""Faults of a log, one by one: disk errors, crashes, damaged and foreign files."""

from __future__ import annotations

import errno
from pathlib import Path

import msgspec
import pytest
from tests.storage.storage_samples import (
    NOW_MS,
    SMALL,
    append,
    append_marker,
    flip_bit,
    make_batch,
    open_log,
    segment_files,
    stored_batches,
    sync,
)

from headrace.base.errors import CorruptData, ErrorCode, KafkaError
from headrace.base.ids import Uuid
from headrace.records.batch import CorruptBatch, read_header, stamp
from headrace.storage.append import UnexpectedBatch
from headrace.storage.checkpoints import LEADER_EPOCH_CHECKPOINT, CorruptCheckpoint
from headrace.storage.disk import DiskFile, DiskFiles
from headrace.storage.files import Buffer, ShortWrite
from headrace.storage.log import Log
from headrace.storage.retention import enforce


class FullDiskFile(DiskFile):
    """A file that refuses appends larger than the disk's `room`."""

    __slots__ = ()

    def append(self, data: Buffer) -> int:
        files = self._files
        assert isinstance(files, FullDiskFiles)
        if files.append_bytes_max is not None and len(data) > files.append_bytes_max:
            raise ShortWrite(errno.ENOSPC, "No space left on device", self.path)
        return super().append(data)


class FullDiskFiles(DiskFiles):
    def __init__(self) -> None:
        super().__init__()
        self.append_bytes_max: int | None = None

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        file = super().open(path, create=create)
        self.closed(file)  # the descriptor passes to the file that can be full
        full = FullDiskFile(self, path, file._descriptor, file.size())
        self.opened(full)
        return full


def filled_log(path: Path, batches: int = 60) -> Log:
    log, _ = open_log(path)
    for number in range(batches):
        append(log, make_batch(2), number // 20)
    assert len(log.segments) > 3
    return log


def test_a_failed_append_on_a_full_disk_leaves_the_log_unchanged(tmp_path: Path) -> None:
    files = FullDiskFiles()
    log, _ = open_log(tmp_path, files=files)
    batch = make_batch(1, producer_id=1, producer_epoch=0, base_sequence=0)
    append(log, batch, 3)
    before = (log.log_end, log.segments.active.size, log.epochs.entries(), log.producers.end_offset)
    following = make_batch(1, producer_id=1, producer_epoch=0, base_sequence=1, transactional=True)
    files.append_bytes_max = 50
    for _ in range(3):
        with pytest.raises(OSError):
            append(log, following, 4)
    assert (log.log_end, log.segments.active.size, log.epochs.entries(), log.producers.end_offset) == before
    assert log.producers.first_unstable_offset is None
    log.check()
    files.append_bytes_max = None
    assert append(log, following, 4).first_offset == 1
    assert [first for first, _, _ in stored_batches(log)] == [0, 1]


def test_a_roll_that_fails_on_a_full_disk_can_be_retried(tmp_path: Path) -> None:
    files = FullDiskFiles()
    log, _ = open_log(tmp_path, files=files)
    while len(log.segments) == 1:
        end, size = log.log_end, log.segments.active.size
        if size > SMALL.segment_bytes - 200:
            files.append_bytes_max = 4
            with pytest.raises(OSError):
                append(log, make_batch(3))
            log.check()
            assert (log.log_end, len(log.segments)) == (end, 1)
            files.append_bytes_max = None
        append(log, make_batch(3))
    assert len(stored_batches(log)) * 3 == log.log_end
    log.close()
    _, report = open_log(tmp_path, clean=True)
    assert report.messages() == []


def test_a_torn_last_batch_is_truncated_and_its_bytes_are_reported(tmp_path: Path) -> None:
    log = filled_log(tmp_path)
    expected = stored_batches(log)
    sync(log)
    append(log, make_batch(5))
    log.abandon()
    last = segment_files(tmp_path, ".log")[-1]
    last.write_bytes(last.read_bytes()[:-7])
    log, report = open_log(tmp_path, recovery_point=120, clean=False)
    assert stored_batches(log) == expected
    (cut,) = report.cuts
    assert cut.next_offset == 120 and cut.bytes_lost == report.bytes_lost == len(make_batch(5)) - 7
    assert "reaches beyond" in report.messages()[0] and last.name in report.messages()[0]
    assert report.segments_checked == 1  # segments below the recovery point are left alone


def test_a_flipped_bit_above_the_recovery_point_truncates_the_log_there(tmp_path: Path) -> None:
    log = filled_log(tmp_path)
    expected = stored_batches(log)
    log.abandon()
    bases = [segment.base_offset for segment in log.segments]
    victim = segment_files(tmp_path, ".log")[1]
    flip_bit(victim, 300)
    log, report = open_log(tmp_path, recovery_point=0, clean=False)
    assert bases[1] <= log.log_end < bases[2]
    assert stored_batches(log) == [one for one in expected if one[1] < log.log_end]
    assert len(report.cuts) == 1 and "checksum" in report.cuts[0].reason
    assert [Path(path).name for path, _ in report.dropped_segments] == [f"{base:020d}.log" for base in bases[2:]]
    assert report.bytes_lost == sum(len(one[2]) for one in expected if one[0] >= log.log_end)
    assert log.epochs.entries() == [one for one in [(0, 0), (1, 40), (2, 80)] if one[1] < log.log_end]
    append(log, make_batch(), 5)
    assert segment_files(tmp_path, ".log")[-1].name == f"{log.segments.active.base_offset:020d}.log"


def test_a_flipped_bit_below_the_recovery_point_is_not_checked_by_recovery(tmp_path: Path) -> None:
    log = filled_log(tmp_path)
    sync(log)
    log.abandon()
    flip_bit(segment_files(tmp_path, ".log")[0], 90)  # in a record, not in a header
    log, report = open_log(tmp_path, recovery_point=120, clean=False)
    assert (log.log_end, report.cuts) == (120, [])


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("harm", ["missing", "cut", "emptied", "zeroed"])
@pytest.mark.parametrize("which", [0, 1, -1])
@pytest.mark.parametrize("clean", [True, False])
def test_a_lost_or_damaged_index_is_rebuilt(tmp_path: Path, suffix: str, harm: str, which: int, clean: bool) -> None:
    log = filled_log(tmp_path)
    expected, end = stored_batches(log), log.log_end
    log.close()
    victim = segment_files(tmp_path, suffix)[which]
    good = victim.read_bytes()
    if harm == "missing":
        victim.unlink()
    else:
        victim.write_bytes({"cut": good[:-3], "emptied": b"", "zeroed": bytes(len(good))}[harm])
    log, report = open_log(tmp_path, recovery_point=end, clean=clean)
    assert stored_batches(log) == expected
    assert log.find_by_timestamp(NOW_MS) == (0, NOW_MS, 0)
    assert report.cuts == [] and report.damage == []
    log.close()
    # An empty offset index is legal: lookups start at the beginning of the segment.
    if not (suffix == ".index" and harm in ("emptied", "zeroed")):
        assert victim.read_bytes() == good


def test_reads_are_correct_despite_a_flipped_bit_in_a_sealed_index(tmp_path: Path) -> None:
    log = filled_log(tmp_path)
    expected, end = stored_batches(log), log.log_end
    log.close()
    victim = segment_files(tmp_path, ".index")[1]
    good = victim.read_bytes()
    for position in range(8, len(good) - 8):
        flip_bit(victim, position)
        log, _ = open_log(tmp_path, recovery_point=end, clean=True)
        assert stored_batches(log) == expected
        for first, last, data in expected:
            assert log.read(last, 1).range.read() == data, first
        log.close()
        victim.write_bytes(good)


def test_an_index_with_offsets_beyond_the_log_end_is_rebuilt(tmp_path: Path) -> None:
    log = filled_log(tmp_path)
    expected, end = stored_batches(log), log.log_end
    log.close()
    victim = segment_files(tmp_path, ".index")[-1]
    good = victim.read_bytes()
    victim.write_bytes(good[:-8] + (2**20).to_bytes(4, "big") + good[-4:])
    log, _ = open_log(tmp_path, recovery_point=end, clean=True)
    assert stored_batches(log) == expected
    for _ in range(20):
        append(log, make_batch())
    log.close()
    assert victim.read_bytes()[: len(good)] == good


def log_with_times(path: Path) -> Log:
    """Write timestamps that go up and down, so that a lookup that starts too late gives a wrong result."""
    log, _ = open_log(path)
    for number in range(60):
        append(log, make_batch([NOW_MS + (number * 7) % 40 + number, NOW_MS + number]))
    return log


@pytest.mark.parametrize("which", [0, 1, -1])
def test_timestamp_lookups_are_correct_despite_a_flipped_bit_in_a_time_index(tmp_path: Path, which: int) -> None:
    log = log_with_times(tmp_path)
    times = range(NOW_MS, NOW_MS + 110, 3)
    expected = [log.find_by_timestamp(time) for time in times]
    largest, end = log.max_timestamp_offset(), log.log_end
    log.close()
    victim = segment_files(tmp_path, ".timeindex")[which]
    good = victim.read_bytes()
    assert len(good) >= 24
    for position in range(len(good)):
        flip_bit(victim, position)
        log, _ = open_log(tmp_path, recovery_point=end, clean=True)
        assert [log.find_by_timestamp(time) for time in times] == expected, position
        assert log.max_timestamp_offset() == largest
        log.close()
        victim.write_bytes(good)


def test_retention_does_not_trust_a_damaged_time_index(tmp_path: Path) -> None:
    log = log_with_times(tmp_path)
    end = log.log_end
    log.close()
    victim = segment_files(tmp_path, ".timeindex")[0]
    data = bytearray(victim.read_bytes())
    data[-12:-4] = (1000).to_bytes(8, "big")  # 1970, so long expired
    del data[:-12]
    victim.write_bytes(data)
    log, _ = open_log(tmp_path, recovery_point=end, clean=True)
    assert log.segments.first.max_timestamp == 1000
    log.configure(msgspec.structs.replace(SMALL, retention_ms=10_000))
    assert enforce(log, end, NOW_MS) is None
    assert log.segments.first.max_timestamp > NOW_MS


def test_a_damaged_batch_in_an_old_segment_is_reported_and_left_unchanged(tmp_path: Path) -> None:
    log = filled_log(tmp_path)
    end = log.log_end
    log.close()
    victim = segment_files(tmp_path, ".log")[1]
    data = bytearray(victim.read_bytes())
    data[16 + len(make_batch(2))] = 9  # the magic of the second batch
    victim.write_bytes(data)
    segment_files(tmp_path, ".index")[1].unlink()
    log, report = open_log(tmp_path, recovery_point=end, clean=True)
    assert log.log_end == end and victim.read_bytes() == data
    assert len(report.damage) == 1 and victim.name in report.damage[0]
    with pytest.raises(CorruptData, match=victim.name):
        log.read(log.segments.floor(int(victim.stem)).base_offset + 4, 100)


def test_a_damaged_epoch_checkpoint_is_rebuilt_from_the_batches(tmp_path: Path) -> None:
    log = filled_log(tmp_path)
    epochs, end = log.epochs.entries(), log.log_end
    log.close()
    path = Path(log.directory) / LEADER_EPOCH_CHECKPOINT
    path.write_text("0\n3\nnonsense\n")
    log, report = open_log(tmp_path, recovery_point=end, clean=True)
    assert log.epochs.entries() == epochs == [(0, 0), (1, 40), (2, 80)]
    assert "leader-epoch-checkpoint, line 2" in report.messages()[0]
    log.close()
    assert path.read_bytes() == b"0\n3\n0 0\n1 40\n2 80\n"


@pytest.mark.parametrize("harm", [b"", b"garbage"])
def test_producer_state_is_rebuilt_from_the_batches_if_its_snapshot_is_damaged(tmp_path: Path, harm: bytes) -> None:
    log, _ = open_log(tmp_path)
    for number in range(40):
        append(log, make_batch(1, producer_id=5, producer_epoch=1, base_sequence=number))
    log.close()
    for path in segment_files(tmp_path, ".snapshot"):
        path.write_bytes(harm)
    log, _ = open_log(tmp_path, recovery_point=40, clean=True)
    entry = log.producers.entry(5)
    assert entry is not None and (entry.last_sequence, entry.last_offset) == (39, 39)
    assert len(entry.batches) == 5  # the replay remembers even more than the snapshot


def test_recovery_restores_aborted_transactions_without_their_index(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path)
    for number in range(20):
        batch = make_batch(2, producer_id=1, producer_epoch=number, base_sequence=0, transactional=True)
        append(log, batch)
        append(log, make_batch(1, producer_id=2, producer_epoch=number, base_sequence=0, transactional=True))
        append_marker(log, 1, number, commit=number % 2 == 0)
        append_marker(log, 2, number, commit=False)
    append(log, make_batch(2, producer_id=9, producer_epoch=0, base_sequence=0, transactional=True))
    end, aborted = log.log_end, log.aborted_transactions(0, log.log_end)
    assert len(aborted) == 30 and log.last_stable_offset(end) == end - 2
    assert [one.producer_id for one in log.aborted_transactions(0, 5)] == [2]  # producer 1 committed its first one
    sync(log)
    log.abandon()
    for path in segment_files(tmp_path, ".txnindex")[1:]:
        path.write_bytes(b"torn")
    log, report = open_log(tmp_path, recovery_point=end, clean=False)
    assert log.aborted_transactions(0, end) == aborted
    assert log.last_stable_offset(end) == end - 2 and report.cuts == []


def test_leftover_files_of_a_crashed_broker_are_removed_or_swapped_in(tmp_path: Path) -> None:
    log = filled_log(tmp_path)
    expected, end = stored_batches(log), log.log_end
    bases = [segment.base_offset for segment in log.segments]
    log.close()
    directory = Path(log.directory)
    for name in (
        f"{bases[0]:020d}.log.deleted",
        "leader-epoch-checkpoint.tmp",
        f"{bases[3]:020d}.log.cleaned",
        f"{bases[3]:020d}.log.swap",  # belongs to the unfinished cleaning
        f"{7:020d}.index",  # has no log
    ):
        (directory / name).write_bytes(b"left behind")
    # The cleaner had merged two segments into one and died before it replaced them.
    merged = b"".join(one[2] for one in expected if bases[1] <= one[0] < bases[3])
    (directory / f"{bases[1]:020d}.log.swap").write_bytes(merged)
    (directory / f"{bases[1]:020d}.index.swap").write_bytes(b"")
    kept = {"00000000000000000009-0000000001.checkpoint.deleted", "quorum-state"}
    for name in kept:
        (directory / name).write_bytes(b"the quorum's")
    log, report = open_log(tmp_path, recovery_point=end, clean=True)
    assert stored_batches(log) == expected
    assert log.segments.base_offsets() == bases[:2] + bases[3:]
    names = {path.name for path in directory.iterdir()}
    assert kept < names
    assert not any(name.endswith((".swap", ".cleaned", ".tmp")) or "log.deleted" in name for name in names)
    assert f"{7:020d}.index" in report.removed_files


def test_a_log_that_ends_below_its_log_start_is_emptied_and_starts_there(tmp_path: Path) -> None:
    log = filled_log(tmp_path)
    log.close()
    log, report = open_log(tmp_path, recovery_point=120, log_start=500, clean=True)
    assert (log.log_start, log.log_end, log.recovery_point) == (500, 500, 500)
    assert len(report.dropped_segments) > 3 and stored_batches(log) == []
    assert append(log, make_batch()).first_offset == 500


def test_a_directory_with_another_topic_id_is_refused(tmp_path: Path) -> None:
    mine, other = Uuid(bytes(15) + b"\x07"), Uuid(bytes(15) + b"\x08")
    log, _ = open_log(tmp_path, topic_id=mine)
    log.close()
    log, _ = open_log(tmp_path)
    assert log.topic_id == mine
    with pytest.raises(KafkaError) as caught:
        open_log(tmp_path, topic_id=other)
    assert caught.value.code == ErrorCode.INCONSISTENT_TOPIC_ID
    (Path(log.directory) / "partition.metadata").write_text("nonsense")
    with pytest.raises(CorruptCheckpoint, match=r"partition\.metadata, line 1"):
        open_log(tmp_path, topic_id=mine, clean=True)
    # After a crash it may have been torn before its first sync. Whether the directory may have records then is for the caller to say.
    log, _ = open_log(tmp_path, topic_id=mine)
    assert log.topic_id == mine


def test_a_follower_refuses_batches_that_do_not_continue_its_log(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path)

    def at(offset: int, epoch: int) -> bytearray:
        batch = make_batch(2)
        stamp(batch, 0, read_header(batch), offset, epoch)
        return batch

    log.append_as_follower(at(0, 4), NOW_MS)
    for buffer, error in [
        (at(1, 4), UnexpectedBatch),
        (at(2, 3), UnexpectedBatch),
        (at(2, 4) + at(3, 4), UnexpectedBatch),
        (at(2, 5) + at(4, 4), UnexpectedBatch),
        (at(2, 4)[:-1] + b"?", CorruptBatch),
    ]:
        with pytest.raises(error):
            log.append_as_follower(bytes(buffer), NOW_MS)
    assert log.append_as_follower(bytes(at(2, 4)[:-1]), NOW_MS) is None  # a partial batch is left for the next fetch
    assert (log.log_end, len(stored_batches(log))) == (2, 1)


def test_a_sync_overtaken_by_a_truncation_does_not_move_the_recovery_point(tmp_path: Path) -> None:
    log = filled_log(tmp_path)
    plan = log.pending_sync()
    assert plan is not None and plan.offset == 120
    log.truncate_to(30, NOW_MS)
    plan.run()
    log.synced(plan)
    assert log.recovery_point == 0
    sync(log)
    assert log.recovery_point == 30
    assert log.pending_sync() is None


def test_checksums_stay_valid_when_an_append_rewrites_timestamps(tmp_path: Path) -> None:
    log, _ = open_log(tmp_path)
    batch = make_batch([5, 6], producer_id=1, producer_epoch=0, base_sequence=0)
    again = bytearray(batch)
    info = log.append_as_leader(batch, read_header(batch), 0, NOW_MS, append_time=True)
    assert info.log_append_time == NOW_MS
    assert log.find_by_timestamp(NOW_MS) == (0, NOW_MS, 0)
    assert log.append_as_leader(again, read_header(again), 0, NOW_MS + 9, append_time=True) == info._replace(
        duplicate=True
    )
    understated = bytearray(make_batch([7]))
    log.append_as_leader(understated, read_header(understated), 0, NOW_MS, max_timestamp=99)
    log.abandon()
    _, report = open_log(tmp_path)  # checks every checksum
    assert report.cuts == []

"""Snapshots on disk: complete or absent, taken by size and by time; the log below them is deleted when permitted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
from tests.fakes import FakeClock

from headrace.base.errors import CorruptData
from headrace.base.ids import NodeId, Uuid
from headrace.metadata.snapshot import snapshot_records
from headrace.metadata.state import ClusterState, replay
from headrace.protocol.compiler import codec
from headrace.protocol.declare import Struct
from headrace.protocol.messages.embedded import KRaftVersionRecord, VotersRecord
from headrace.protocol.messages.stored.metadata_cluster import ConfigRecord, FeatureLevelRecord
from headrace.quorum import snapshotter as snapshotter_module
from headrace.quorum.driver import QuorumDriver, ReplicaFiles
from headrace.quorum.log_view import MetadataLogView
from headrace.quorum.opening import open_metadata
from headrace.quorum.peers import NoPeers
from headrace.quorum.snapshots import SnapshotFiles, SnapshotId, snapshot_batches, snapshot_timestamp
from headrace.quorum.snapshotter import SnapshotPolicy, Snapshotter
from headrace.quorum.store import ElectionStore
from headrace.quorum.voter_records import VoterRecords
from headrace.raft.election import Timeouts
from headrace.raft.membership import VoterHistory
from headrace.raft.node import RaftNode
from headrace.raft.voters import ReplicaKey, Voter, VoterSet
from headrace.records.control import ControlType, ParsedControlRecord
from headrace.storage.disk import DiskFiles

NOW_MS = 1_000_000
VOTER_IDS = frozenset({NodeId(1)})


def records(count: int) -> list[ConfigRecord]:
    return [
        ConfigRecord(resource_type=2, resource_name=f"t{i}", name="retention.ms", value="1" * 50) for i in range(count)
    ]


def batches(found: Sequence[ConfigRecord], control: tuple[Any, ...] = ()) -> Iterator[Any]:
    return snapshot_batches(found, 3, 7, last_timestamp=5, control=control)


def test_snapshots_of_any_size_are_read_back_as_written(tmp_path: Path) -> None:
    files = SnapshotFiles(DiskFiles(), str(tmp_path))
    for count in (0, 1, 3000):
        snapshot = SnapshotId(count + 1, 3)
        files.write(snapshot, batches(records(count)))
        files.check(snapshot)
        found = [record for batch in files.read(snapshot) for record in batch.records]
        assert found == records(count) and snapshot_timestamp(files, snapshot) == 5
        assert files.size(snapshot) == (tmp_path / snapshot.file_name).stat().st_size
    assert files.newest == SnapshotId(3001, 3) and files.newest.file_name == f"{3001:020d}-{3:010d}.checkpoint"
    assert SnapshotFiles(DiskFiles(), str(tmp_path)).ids == files.ids


def test_names_of_other_files_do_not_parse_as_snapshot_ids() -> None:
    for name in (
        "1-1.checkpoint",
        f"{5:020d}-{1:010d}.checkpoint.part",
        f"{5:020d}-{'x' * 10}.checkpoint",
        "bootstrap",
    ):
        assert SnapshotId.parse(name) is None
    assert SnapshotId.parse(SnapshotId(5, 1).file_name) == SnapshotId(5, 1)


def test_unfinished_snapshots_are_removed_when_the_directory_is_opened(tmp_path: Path) -> None:
    files = SnapshotFiles(DiskFiles(), str(tmp_path))
    part = files.begin(SnapshotId(9, 1))
    part.append(b"x")
    assert [path.name.endswith(".part") for path in tmp_path.iterdir()] == [True]
    assert SnapshotFiles(DiskFiles(), str(tmp_path)).ids == [] and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["cut", "flip", "no footer", "no header"])
def test_damaged_snapshots_raise_corrupt_data_when_checked_or_read(tmp_path: Path, damage: str) -> None:
    files, snapshot = SnapshotFiles(DiskFiles(), str(tmp_path)), SnapshotId(9, 1)
    files.write(snapshot, batches(records(2000)))
    path = tmp_path / snapshot.file_name
    whole = path.read_bytes()
    parts = list(batches(records(2000)))
    path.write_bytes(
        {
            "cut": whole[:-10],
            "flip": whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:],
            "no footer": b"".join(parts[:-1]),
            "no header": b"".join(parts[1:]),
        }[damage]
    )
    with pytest.raises(CorruptData):
        files.check(snapshot)
    with pytest.raises(CorruptData):
        list(files.read(snapshot))


def test_opening_uses_the_newest_intact_snapshot_and_resumes_the_log_after_it(tmp_path: Path) -> None:
    disk, directory = DiskFiles(), str(tmp_path / "m")
    disk.make_dirs(directory)
    files = SnapshotFiles(disk, directory)
    files.write(SnapshotId(4, 1), batches(records(1)))
    files.write(SnapshotId(8, 2), batches(records(2)))
    (tmp_path / "m" / SnapshotId(8, 2).file_name).write_bytes(b"garbage")
    stored = open_metadata(disk, directory, 1 << 20, 1 << 40, FakeClock(NOW_MS))
    assert stored.newest == SnapshotId(4, 1) and stored.first_offset == 4
    assert stored.log.end_offset == 4 and stored.log.log.log_start == 4
    stored.log.log.close()
    (tmp_path / "m" / SnapshotId(4, 1).file_name).unlink()
    with pytest.raises(CorruptData, match="begins at offset 4"):
        open_metadata(disk, directory, 1 << 20, 1 << 40, FakeClock(NOW_MS))


def control(kind: ControlType, message: Struct) -> ParsedControlRecord:
    return ParsedControlRecord(0, 0, kind, codec(type(message), 0).encode(message))


def test_voter_records_round_trip_and_garbage_is_refused() -> None:
    voter = VotersRecord.Voter(voter_id=1, voter_directory_id=Uuid(b"d" * 16))
    found = VoterRecords().after(
        [
            control(ControlType.KRAFT_VERSION, KRaftVersionRecord(kraft_version=1)),
            control(ControlType.KRAFT_VOTERS, VotersRecord(voters=[voter])),
        ]
    )
    assert found.kraft_version == 1 and found.voters == VoterSet(
        [Voter(ReplicaKey(NodeId(1), Uuid(b"d" * 16)), (), 0, 0)]
    )
    assert VoterRecords().after(ParsedControlRecord(0, 0, one.type, one.value) for one in found.control()) == found
    for voters in ([], [voter, voter], [VotersRecord.Voter(voter_id=-1)]):
        with pytest.raises(CorruptData):
            found.after([control(ControlType.KRAFT_VOTERS, VotersRecord(voters=voters))])
    with pytest.raises(CorruptData):
        found.after([ParsedControlRecord(0, 0, ControlType.KRAFT_VOTERS, b"\xff")])


class QuorumHarness:
    """A quorum of one with its cluster state, wired as in the controller role."""

    def __init__(self, directory: Path, loop: asyncio.AbstractEventLoop, clock: FakeClock, **policy: Any) -> None:
        self.clock, self.files = clock, DiskFiles()
        self.stored = open_metadata(self.files, str(directory), 20_000, 1 << 40, clock)
        store = ElectionStore(self.files, str(directory), VOTER_IDS)
        view = MetadataLogView(self.stored.log, self.stored.snapshots)
        voters = VoterHistory(VoterSet.of_ids(1))
        raft = RaftNode(ReplicaKey(NodeId(1)), voters, store.load(), view, Timeouts(), Random(1))
        files = ReplicaFiles(self.stored.log, self.stored.snapshots, store)
        self.driver = QuorumDriver(raft, files, NoPeers(), loop)
        self.state = ClusterState(dict)
        if self.stored.newest is not None:
            for batch in self.stored.snapshots.read(self.stored.newest):
                for record in batch.records:
                    replay(self.state, record)
        for batch in self.stored.log.read(self.stored.first_offset, self.stored.log.end_offset):
            for record in batch.records:
                replay(self.state, record)
        self.snapshotter = Snapshotter(
            self.driver,
            self.stored.snapshots,
            lambda: self.state,
            lambda: self.driver.high_watermark,
            SnapshotPolicy(
                **{"bytes_between": 1 << 40, "interval_ms": 0, "retention_bytes": -1, "retention_ms": -1, **policy}
            ),
            clock,
            loop,
        )

    async def lead(self) -> None:
        self.driver.start()
        await asyncio.wait_for(asyncio.shield(self.driver.joined), 5)

    async def write(self, found: Sequence[Struct]) -> None:
        for record in found:
            replay(self.state, record)
        end = self.driver.propose(found) + 1
        while self.driver.high_watermark < end:
            await asyncio.sleep(0.001)

    async def tick(self) -> None:
        self.snapshotter.tick()
        while self.snapshotter._work is not None:
            await asyncio.sleep(0.001)

    async def close(self) -> None:
        await self.snapshotter.stop()
        await self.driver.stop()


def test_snapshots_are_taken_by_size_and_by_time_only_if_there_are_new_records(tmp_path: Path) -> None:
    async def run() -> None:
        loop, clock = asyncio.get_running_loop(), FakeClock(NOW_MS)
        harness = QuorumHarness(tmp_path / "m", loop, clock, bytes_between=5_000, interval_ms=60_000)
        await harness.lead()
        await harness.tick()
        assert harness.stored.snapshots.ids == []
        await harness.write(records(100))
        await harness.tick()
        assert harness.stored.snapshots.ids == [SnapshotId(101, 1)]
        await harness.write([FeatureLevelRecord(name="metadata.version", feature_level=30)])
        await harness.tick()
        assert len(harness.stored.snapshots.ids) == 1
        clock.advance(60_000)
        await harness.tick()
        assert harness.stored.snapshots.ids[-1] == SnapshotId(102, 1)
        clock.advance(60_000)
        await harness.tick()
        assert len(harness.stored.snapshots.ids) == 2
        await harness.close()
        reopened = QuorumHarness(tmp_path / "m", loop, clock)
        assert reopened.stored.newest == SnapshotId(102, 1)
        assert list(snapshot_records(reopened.state)) == list(snapshot_records(harness.state))
        reopened.stored.log.log.close()

    asyncio.run(run())


def test_retention_bytes_deletes_old_snapshots_and_the_log_below_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshotter_module, "CLEAN_INTERVAL_MS", 0)

    async def run() -> None:
        loop, clock = asyncio.get_running_loop(), FakeClock(NOW_MS)
        harness = QuorumHarness(tmp_path / "m", loop, clock, bytes_between=15_000, retention_bytes=30_000)
        await harness.lead()
        for _ in range(8):
            await harness.write(records(100))
            await harness.tick()
        log = harness.stored.log.log
        assert harness.stored.snapshots.ids[0].end_offset == log.log_start > 0
        assert log.segments.first.base_offset > 0
        await harness.close()
        reopened = QuorumHarness(tmp_path / "m", loop, clock)
        assert list(snapshot_records(reopened.state)) == list(snapshot_records(harness.state))
        reopened.stored.log.log.close()

    asyncio.run(run())


def test_retention_ms_deletes_expired_snapshots_but_keeps_the_newest(tmp_path: Path) -> None:
    async def run() -> None:
        loop, clock = asyncio.get_running_loop(), FakeClock(NOW_MS)
        harness = QuorumHarness(tmp_path / "m", loop, clock, interval_ms=1, retention_ms=1_000)
        await harness.lead()
        for _ in range(3):
            clock.advance(600)
            await harness.write(records(1))
            await harness.tick()
        assert [one.end_offset for one in harness.stored.snapshots.ids] == [3, 4]
        clock.advance(100_000)
        await harness.tick()
        assert [one.end_offset for one in harness.stored.snapshots.ids] == [4]
        assert harness.stored.log.log.log_start == 4
        await harness.close()

    asyncio.run(run())


def test_a_failed_snapshot_is_logged_and_the_next_one_succeeds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        loop, clock = asyncio.get_running_loop(), FakeClock(NOW_MS)
        harness = QuorumHarness(tmp_path / "m", loop, clock, bytes_between=1)
        await harness.lead()
        begin = harness.stored.snapshots.begin

        def refuse(snapshot: SnapshotId) -> None:
            raise OSError(28, "No space left on device")

        harness.stored.snapshots.begin = refuse
        await harness.write(records(1))
        await harness.tick()
        assert "No space left" in caplog.text and harness.stored.snapshots.ids == []
        harness.stored.snapshots.begin = begin
        await harness.write(records(1))
        await harness.tick()
        assert harness.stored.snapshots.ids == [SnapshotId(3, 1)]
        await harness.close()

    asyncio.run(run())

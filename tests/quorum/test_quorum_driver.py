"""The raft driver: nothing counts before it is on disk, one fsync covers many writes, a failed fsync stops the node."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest
from tests.fakes import FakeClock

from headrace.base.errors import CorruptData
from headrace.base.ids import METADATA_TOPIC_ID, ZERO_UUID, NodeId, TopicPartition, Uuid
from headrace.protocol.messages.stored.metadata_cluster import NoOpRecord
from headrace.quorum.driver import QuorumDriver, QuorumFailed, ReplicaFiles
from headrace.quorum.log import MetadataLog
from headrace.quorum.log_view import MetadataLogView
from headrace.quorum.peers import NoPeers
from headrace.quorum.snapshots import SnapshotFiles
from headrace.quorum.store import ElectionStore
from headrace.raft.effects import ElectionState
from headrace.raft.election import Timeouts
from headrace.raft.membership import VoterHistory
from headrace.raft.node import RaftNode
from headrace.raft.voters import ReplicaKey, VoterSet
from headrace.statemachine.journal import NotLeader
from headrace.storage.disk import DiskFiles
from headrace.storage.log import Log
from headrace.storage.log_config import LogConfig
from headrace.storage.sync import SyncPlan

VOTER_IDS = frozenset({NodeId(1)})


def open_driver(directory: Path, loop: asyncio.AbstractEventLoop) -> QuorumDriver:
    disk = DiskFiles()
    opened, _ = Log.open(
        disk, str(directory), TopicPartition("m", 0), LogConfig(), topic_id=METADATA_TOPIC_ID, now_ms=1
    )
    store = ElectionStore(disk, str(directory), VOTER_IDS)
    metadata_log = MetadataLog(opened, FakeClock(1))
    snapshots = SnapshotFiles(disk, str(directory))
    view = MetadataLogView(metadata_log, snapshots)
    voters = VoterHistory(VoterSet.of_ids(1))
    raft = RaftNode(ReplicaKey(NodeId(1)), voters, store.load(), view, Timeouts(), Random(1))
    files = ReplicaFiles(metadata_log, snapshots, store)
    return QuorumDriver(raft, files, NoPeers(), loop)


async def lead(driver: QuorumDriver) -> None:
    driver.start()
    await asyncio.wait_for(asyncio.shield(driver.joined), 5)


def test_each_restart_starts_a_higher_epoch_and_keeps_the_log(tmp_path: Path) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        for epoch in (1, 2, 3):
            driver = open_driver(tmp_path, loop)
            await lead(driver)
            assert driver.raft.epoch == epoch and driver.high_watermark == 2 * epoch - 1
            committed: list[int] = []
            driver.on_committed(committed.append)
            assert driver.propose([NoOpRecord()]) == 2 * epoch - 1
            assert committed == []
            while not committed:
                await asyncio.sleep(0.001)
            assert committed == [2 * epoch]
            await driver.stop()
            with pytest.raises(NotLeader):
                driver.propose([NoOpRecord()])
        driver = open_driver(tmp_path, loop)
        batches = list(driver.log.read(0, driver.log.end_offset))
        assert [(batch.last_offset, batch.epoch, len(batch.records)) for batch in batches] == [
            (0, 1, 0), (1, 1, 1), (2, 2, 0), (3, 2, 1), (4, 3, 0), (5, 3, 1),
        ]  # fmt: skip

    asyncio.run(run())


def test_fifty_proposals_need_only_two_fsyncs(tmp_path: Path) -> None:
    async def run() -> None:
        driver = open_driver(tmp_path, asyncio.get_running_loop())
        await lead(driver)
        syncs: list[int] = []
        original = driver.log.log.pending_sync

        def counting() -> SyncPlan:
            plan = original()
            syncs.append(plan.offset)
            return plan

        driver.log.log.pending_sync = counting
        for _ in range(50):
            driver.propose([NoOpRecord(), NoOpRecord()])
        while driver.high_watermark < 101:
            await asyncio.sleep(0.001)
        assert len(syncs) == 2 and syncs[-1] == 101

    asyncio.run(run())


def test_a_failed_fsync_ends_leadership_and_fails_the_driver(tmp_path: Path) -> None:
    async def run() -> None:
        driver = open_driver(tmp_path, asyncio.get_running_loop())
        await lead(driver)
        lost: list[bool] = []
        driver.on_lost(lambda: lost.append(True))

        class Failing:
            offset = 2

            def run(self) -> None:
                raise OSError("I/O error")

        driver.log.log.pending_sync = lambda: Failing()  # type: ignore[assignment, return-value]
        driver.propose([NoOpRecord()])
        with pytest.raises(QuorumFailed, match="I/O error"):
            await driver.failed
        assert lost == [True] and not driver.is_leader and driver.high_watermark == 1

    asyncio.run(run())


@pytest.mark.parametrize(
    ("kraft_version", "text"),
    [
        (
            0,
            '{"clusterId":"","leaderId":1,"leaderEpoch":7,"votedId":1,"appliedOffset":0,'
            '"currentVoters":[{"voterId":1}],"data_version":0}',
        ),
        (1, '{"leaderId":1,"leaderEpoch":7,"votedId":1,"votedDirectoryId":"ZGRkZGRkZGRkZGRkZGRkZA","data_version":1}'),
    ],
)
def test_the_vote_is_stored_in_kafkas_quorum_state_format(tmp_path: Path, kraft_version: int, text: str) -> None:
    store = ElectionStore(DiskFiles(), str(tmp_path), VOTER_IDS)
    assert store.load() == ElectionState()
    directory = Uuid(b"d" * 16) if kraft_version else ZERO_UUID
    for state in (ElectionState(3), ElectionState(7, NodeId(1), ReplicaKey(NodeId(1), directory))):
        store.save(state, kraft_version)
        assert store.load() == state
    assert (tmp_path / "quorum-state").read_text() == text
    for garbage in ("", "{}", "[]", '{"data_version":9}', text.replace(":7", ":-7"), text.replace("ZGRk", "?")):
        (tmp_path / "quorum-state").write_text(garbage)
        if garbage != text:
            with pytest.raises(CorruptData, match="quorum-state"):
                store.load()


def test_quorum_state_of_static_voters_lists_them_all_in_kafkas_order(tmp_path: Path) -> None:
    store = ElectionStore(DiskFiles(), str(tmp_path), [NodeId(3), NodeId(1), NodeId(2)])
    store.save(ElectionState(4, NodeId(2)))
    text = (tmp_path / "quorum-state").read_text()
    assert '"currentVoters":[{"voterId":1},{"voterId":2},{"voterId":3}]' in text and '"votedId":-1' in text
    assert store.load() == ElectionState(4, NodeId(2))


def test_a_quorum_that_becomes_dynamic_keeps_the_directory_of_its_vote(tmp_path: Path) -> None:
    store = ElectionStore(DiskFiles(), str(tmp_path), VOTER_IDS)
    state = ElectionState(4, voted_for=ReplicaKey(NodeId(2), Uuid(b"d" * 16)))
    store.save(state, 1)
    assert store.load() == state


def test_a_vote_that_reaches_the_disk_while_the_node_stops_elects_nobody(tmp_path: Path) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        driver = open_driver(tmp_path, loop)
        driver.start()
        await driver.stop()
        assert driver.log.end_offset == 0 and not driver.is_leader
        driver = open_driver(tmp_path, loop)
        await lead(driver)
        assert driver.raft.epoch == 2 and driver.log.end_offset == 1
        await driver.stop()

    asyncio.run(run())

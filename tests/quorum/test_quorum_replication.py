"""Three drivers on a fake network: followers copy the leader's log, truncate what diverges, and refuse what is damaged."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.quorum.quorum_harness import ReplicaNetwork

from headrace.base.ids import NodeId
from headrace.protocol.messages.stored.metadata_cluster import NoOpRecord
from headrace.quorum.snapshots import SnapshotId, snapshot_batches
from headrace.raft.roles import Role


def run_network(directory: Path, work: Callable[[ReplicaNetwork], Awaitable[None]]) -> None:
    async def run() -> None:
        network = ReplicaNetwork(directory)
        network.start()
        try:
            await network.until_leader()
            await work(network)
        finally:
            await network.stop()

    asyncio.run(run())


def followers_of(network: ReplicaNetwork) -> list[NodeId]:
    return [node_id for node_id, replica in network.replicas.items() if replica is not network.leader]


def test_followers_have_the_leaders_bytes(tmp_path: Path) -> None:
    async def work(network: ReplicaNetwork) -> None:
        await network.write(100)
        await network.until_equal()
        assert network.bytes_of(1) == network.bytes_of(2) == network.bytes_of(3)

    run_network(tmp_path, work)


def test_a_leader_that_is_cut_off_commits_nothing_and_truncates_when_it_is_back(tmp_path: Path) -> None:
    async def work(network: ReplicaNetwork) -> None:
        await network.write(5)
        await network.until_equal()
        old = network.leader
        network.cut = {old.driver.raft.key.id}
        lost: list[bool] = []
        old.driver.on_lost(lambda: lost.append(True))
        before = old.driver.high_watermark
        for _ in range(4):
            old.driver.propose([NoOpRecord()])
        new = await network.until_leader()
        assert new is not old and old.driver.high_watermark == before
        await network.write(3)
        network.cut = set()
        await network.until_equal()
        assert lost == [True] and old.driver.raft.role is Role.FOLLOWER
        assert network.bytes_of(1) == network.bytes_of(2) == network.bytes_of(3)

    run_network(tmp_path, work)


@pytest.mark.parametrize(
    "position", [0, 8, 12, 16, 17, 30, 57, 65]
)  # offset, length, epoch, magic, CRC, deltas, count, data
def test_a_flipped_bit_in_a_fetched_batch_is_noticed_and_the_batch_fetched_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, position: int
) -> None:
    async def work(network: ReplicaNetwork) -> None:
        await network.until_equal()
        victim, damaged = followers_of(network)[0], list[int]()

        def flip(sender: NodeId, receiver: NodeId, data: bytes) -> bytes:
            if receiver != victim or len(damaged) >= 2:
                return data
            damaged.append(len(data))
            return data[:position] + bytes([data[position] ^ 0x40]) + data[position + 1 :]

        network.tamper = flip
        await network.write(3)
        await network.until_equal()
        assert len(damaged) == 2 and "are not appended" in caplog.text
        assert network.bytes_of(1) == network.bytes_of(2) == network.bytes_of(3)

    run_network(tmp_path, work)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"\xff" * len(data),
        lambda data: data[: len(data) // 2],
        lambda data: b"",
    ],
)
def test_garbage_instead_of_records_never_reaches_the_log(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    async def work(network: ReplicaNetwork) -> None:
        await network.until_equal()
        victim = followers_of(network)[0]
        end = network.replicas[victim].driver.log.end_offset
        network.tamper = lambda sender, receiver, data: damage(data) if receiver == victim else data
        await network.write(1)
        await asyncio.sleep(0.1)
        assert network.replicas[victim].driver.log.end_offset == end
        network.tamper = lambda sender, receiver, data: data
        await network.until_equal()

    run_network(tmp_path, work)


def test_a_replica_that_is_far_behind_installs_the_leaders_snapshot(tmp_path: Path) -> None:
    async def work(network: ReplicaNetwork) -> None:
        await network.until_equal()
        behind = followers_of(network)[0]
        await network.stop(behind)
        end = await network.write(50)
        others = [node_id for node_id in network.ids if node_id != behind]
        await network.until_equal(*others)
        snapshot = SnapshotId(end, network.leader.driver.raft.epoch)
        for node_id in others:
            replica = network.replicas[node_id]
            replica.files.snapshots.write(snapshot, snapshot_batches([], snapshot.epoch, 1, last_timestamp=1))
            replica.files.log.log.roll(1)
            replica.files.log.log.advance_log_start(end)
        damaged: list[bytes] = []

        def flip_once(sender: NodeId, receiver: NodeId, data: bytes) -> bytes:
            if not damaged:
                damaged.append(data)
                return data[:-1] + bytes([data[-1] ^ 1])
            return data

        network.tamper = flip_once
        network.start(behind)
        returned = network.replicas[behind]
        await network.until(lambda: returned.installed == [snapshot])
        assert damaged and returned.files.snapshots.newest == snapshot
        await network.write(3)
        await network.until_equal()
        assert returned.driver.log.log.log_start == end
        assert network.bytes_of(1) == network.bytes_of(2) == network.bytes_of(3)
        await network.stop(behind)
        network.start(behind)
        await network.until_equal()

    run_network(tmp_path, work)


def test_an_interrupted_installation_of_a_snapshot_is_completed_when_the_files_are_opened(tmp_path: Path) -> None:
    async def work(network: ReplicaNetwork) -> None:
        await network.write(5)
        await network.until_equal()
        await network.stop(3)
        replica = network.open(NodeId(3))
        end = replica.driver.log.end_offset
        # The log continues, but in an epoch that the snapshot's last record does not have: it is not the snapshot's log.
        snapshot = SnapshotId(end - 2, 99)
        replica.files.snapshots.write(snapshot, snapshot_batches([], snapshot.epoch, 1, last_timestamp=1))
        await replica.driver.stop()
        reopened = network.open(NodeId(3))
        assert reopened.driver.log.end_offset == reopened.driver.log.log.log_start == snapshot.end_offset
        assert reopened.driver.raft._log.last_epoch == 99

    run_network(tmp_path, work)


def test_a_disk_that_fails_stops_a_follower_and_the_others_continue(tmp_path: Path) -> None:
    async def work(network: ReplicaNetwork) -> None:
        victim = network.replicas[followers_of(network)[0]]

        def refuse(records: bytes) -> None:
            raise OSError(5, "Input/output error")

        victim.driver.log.append_fetched = refuse
        await network.write(3)
        await network.until(victim.driver.failed.done)
        assert "Input/output error" in str(victim.driver.failed.exception())
        await network.write(3)

    run_network(tmp_path, work)

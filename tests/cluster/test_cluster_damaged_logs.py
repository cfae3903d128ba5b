"""Logs with flipped bits and full disks in a cluster: the partition is served by another replica, and nothing acknowledged is lost."""

from __future__ import annotations

import errno
import logging

import pytest
from tests.cluster.simulated_cluster import T0, SimulatedCluster, simulate

from headrace.base.errors import ErrorCode
from headrace.base.ids import TopicPartition
from headrace.protocol.messages.fetch import FetchRequest

OTHER = TopicPartition("t", 1)


def lines(caplog: pytest.LogCaptureFixture, *parts: str) -> list[str]:
    """Return the log lines that contain all of the parts."""
    return [line for line in caplog.messages if all(part in line for part in parts)]


def flip(cluster: SimulatedCluster, node_id: int, position: int, name: TopicPartition = T0) -> None:
    cluster.machines[node_id].files.flip_bit(cluster.log_files(node_id, name)[0], position, 3)


def disk_full(operation: str, path: str) -> OSError | None:
    """Refuse appends to the partition, not to the metadata log."""
    is_append = operation == "append" and path.startswith("/data/t-0")
    return OSError(errno.ENOSPC, "No space left on device", path) if is_append else None


async def with_a_follower_that_lags(cluster: SimulatedCluster) -> tuple[int, int]:
    """Return the leader, and a follower that is down and lacks records that the two others have."""
    await cluster.create(partitions=2)
    await cluster.send(5)
    await cluster.send(5, OTHER)
    leader = cluster.leader()
    follower = next(node_id for node_id in cluster.machines if node_id not in (leader, cluster.active_controller()))
    cluster.down(cluster.machines[follower])
    await cluster.send(20)
    return leader, follower


def test_a_leader_with_a_flipped_bit_leaves_the_partition_to_an_in_sync_replica(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(cluster: SimulatedCluster) -> None:
        leader, follower = await with_a_follower_that_lags(cluster)
        size = cluster.replica(leader).log.size
        flip(cluster, leader, size - 10)  # in the value of the last record
        cluster.start(follower)
        await cluster.until(lambda: cluster.leader() not in (leader, -1))
        await cluster.until_in_sync()  # the follower, and the damaged replica as a new copy
        assert cluster.failures == {}
        assert cluster.replica(leader).log.size == size
        assert cluster.replica(follower).log.log_end == cluster.replica(leader).log.log_end == 25
        await cluster.send(3)
        await cluster.send(3, OTHER)

    with caplog.at_level(logging.INFO):
        simulate(main)
    assert lines(caplog, "t-0 cannot be replicated from offset", "check the disk of its leader")
    assert lines(
        caplog, "t-0 is damaged on this broker", "/data/t-0", "checksum", "leaving it to the in-sync replicas on"
    )
    assert lines(caplog, "t-0: deleting the damaged replica and copying it from broker")


def test_a_leader_with_a_damaged_batch_header_leaves_the_partition_to_another_replica() -> None:
    async def main(cluster: SimulatedCluster) -> None:
        await cluster.create()
        await cluster.send(5)
        leader = cluster.leader()
        flip(cluster, leader, 16)  # the format of the first batch: no consumer can be served from it
        assert [record.offset for record in await cluster.read(T0, 0)] == [0, 1, 2, 3, 4]  # after retries
        assert cluster.leader() != leader
        await cluster.until_in_sync()
        await cluster.send(1)

    simulate(main, seed=2)


def test_other_partitions_of_a_broker_with_a_damaged_log_are_not_affected() -> None:
    async def main(cluster: SimulatedCluster) -> None:
        leader, follower = await with_a_follower_that_lags(cluster)
        epoch = cluster.state(OTHER).leader_epoch
        elsewhere = cluster.leader(OTHER)
        flip(cluster, leader, cluster.replica(leader).log.size - 10)
        cluster.start(follower)
        await cluster.until(lambda: cluster.leader() not in (leader, -1))
        await cluster.send(5, OTHER)
        await cluster.until_in_sync(OTHER)
        assert (cluster.leader(OTHER), cluster.state(OTHER).leader_epoch) == (elsewhere, epoch)

    simulate(main, seed=3)


def test_the_only_in_sync_replica_is_kept_although_it_is_damaged(caplog: pytest.LogCaptureFixture) -> None:
    async def main(cluster: SimulatedCluster) -> None:
        await cluster.create(min_insync_replicas="1")
        await cluster.send(3)
        leader = cluster.leader()
        others = [machine.files for node_id, machine in cluster.machines.items() if node_id != leader]
        size = cluster.replica(leader).log.size
        for files in others:
            files.fault = disk_full
        await cluster.send(3)
        assert cluster.state().isr == (leader,)
        flip(cluster, leader, size + 80)
        for files in others:
            files.fault = None
        await cluster.until(lambda: bool(lines(caplog, "t-0 is damaged", "no other replica is in sync")))
        assert cluster.leader() == leader and cluster.replica(leader).offline is None
        flip(cluster, leader, size + 80)  # the operator has repaired it
        await cluster.until_in_sync()

    simulate(main, seed=4)
    assert len(lines(caplog, "no other replica is in sync")) == 1


def test_a_follower_with_a_flipped_bit_is_copied_anew_when_the_damage_is_read() -> None:
    async def main(cluster: SimulatedCluster) -> None:
        await cluster.create()
        await cluster.send(5)
        leader = cluster.leader()
        damaged = next(node_id for node_id in cluster.machines if node_id != leader)
        flip(cluster, damaged, 16)
        replica = cluster.replica(damaged)
        connection = await cluster.client.broker(damaged)
        wanted = FetchRequest.FetchPartition(partition_max_bytes=1 << 20)
        topic = FetchRequest.FetchTopic(topic_id=replica.topic_id, partitions=[wanted])
        code = ErrorCode.NONE
        while code is ErrorCode.NONE:  # consumers may read from followers
            response = await connection.request(FetchRequest(max_wait_ms=0, topics=[topic]))
            code = ErrorCode(response.responses[0].partitions[0].error_code)
        assert code is ErrorCode.KAFKA_STORAGE_ERROR
        await cluster.send(5)
        await cluster.until_in_sync()
        assert cluster.replica(damaged) is not replica and cluster.leader() == leader

    simulate(main, seed=5)


def test_a_follower_with_a_flipped_bit_is_truncated_by_recovery_and_catches_up() -> None:
    async def main(cluster: SimulatedCluster) -> None:
        await cluster.create()
        await cluster.send(5)
        leader = cluster.leader()
        damaged = next(node_id for node_id in cluster.machines if node_id not in (leader, cluster.active_controller()))
        cluster.down(cluster.machines[damaged])
        flip(cluster, damaged, 80)
        await cluster.send(5)
        cluster.start(damaged)
        await cluster.until_in_sync()
        end = cluster.replica(leader).log.log_end
        found = [cluster.replica(node_id).log.read(0, 1 << 20, end).range.read() for node_id in (leader, damaged)]
        assert found[0] == found[1]
        assert cluster.failures == {}

    simulate(main, seed=6)


def test_a_follower_with_a_full_disk_leaves_the_isr_and_returns_when_there_is_space(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main(cluster: SimulatedCluster) -> None:
        await cluster.create()
        await cluster.send(5)
        full = next(
            node_id for node_id in cluster.machines if node_id not in (cluster.leader(), cluster.active_controller())
        )
        files = cluster.machines[full].files
        files.fault = disk_full
        await cluster.send(5)
        await cluster.until(lambda: full not in cluster.state().isr)
        assert cluster.replica(full).offline is None
        files.fault = None
        await cluster.until_in_sync()
        assert cluster.failures == {}

    simulate(main, seed=7)
    assert lines(caplog, "t-0 refuses records", "the disk is full")
    assert lines(caplog, "t-0 accepts records again")

"""Followers of a cluster: high-watermark checkpoints, topics that are deleted and created again, several fetchers."""

from __future__ import annotations

import asyncio

from tests.cluster.simulated_cluster import T0, SimulatedCluster, simulate

from headrace.base.errors import ErrorCode
from headrace.base.ids import TopicPartition
from headrace.protocol.messages.delete_topics import DeleteTopicsRequest
from headrace.storage.checkpoints import HIGH_WATERMARK_CHECKPOINT


def test_a_replica_restarts_with_the_high_watermark_of_its_checkpoint() -> None:
    async def main(cluster: SimulatedCluster) -> None:
        await cluster.create()
        await cluster.send(7)
        await cluster.until_in_sync()
        follower = next(node_id for node_id in cluster.machines if node_id != cluster.leader())
        machine = cluster.machines[follower]

        def is_written() -> bool:
            path = f"/data/{HIGH_WATERMARK_CHECKPOINT}"
            return machine.files.exists(path) and b"t 0 7" in machine.files.open(path).read(0, 1000)

        await cluster.until(is_written)
        for one in cluster.machines.values():
            cluster.down(one)
        cluster.start()
        await cluster.until(lambda: cluster.replica(follower) is not None)
        assert machine.node.broker.replicas._logs.stored.get(HIGH_WATERMARK_CHECKPOINT, T0) == 7
        assert cluster.replica(follower).high_watermark == 7  # not 0, which would hide committed records for a while
        await cluster.until_in_sync()

    simulate(main, options={"replica.high.watermark.checkpoint.interval.ms": "200"})


def test_without_a_checkpoint_a_restarted_leader_shows_no_offset_below_what_it_had_committed() -> None:
    async def main(cluster: SimulatedCluster) -> None:
        await cluster.create()
        await cluster.send(7)
        for machine in cluster.machines.values():
            cluster.down(machine)
            machine.files.remove(f"/data/{HIGH_WATERMARK_CHECKPOINT}")
        cluster.start()
        await cluster.until_in_sync()
        assert all(cluster.replica(node_id).high_watermark == 7 for node_id in cluster.machines)

    simulate(main, seed=2)


async def delete_topic(cluster: SimulatedCluster) -> None:
    state = DeleteTopicsRequest.DeleteTopicState(name="t")
    connection = await cluster.client.broker(cluster.active_controller())
    response = await connection.request(DeleteTopicsRequest(topics=[state], timeout_ms=5000))
    assert response.responses[0].error_code == ErrorCode.NONE


def test_a_topic_that_is_deleted_and_created_again_while_it_is_followed_begins_empty_on_all_replicas() -> None:
    async def main(cluster: SimulatedCluster) -> None:
        await cluster.create("u")
        for _ in range(4):
            await cluster.create()
            await cluster.send(5)
            old = cluster.image().topics["t"].id
            await delete_topic(cluster)
            cluster.acknowledged.pop(T0)
            await cluster.create()
            await cluster.until(lambda old=old: cluster.image().topics["t"].id != old)  # type: ignore[misc]
            await cluster.until_in_sync()
            assert {cluster.replica(node_id).log.log_end for node_id in cluster.machines} == {0}
            await cluster.send(2)
            await cluster.until_in_sync()
            assert {cluster.replica(node_id).log.log_end for node_id in cluster.machines} == {2}
            await delete_topic(cluster)
            cluster.acknowledged.pop(T0)
            await cluster.until(lambda: all(cluster.replica(node_id) is None for node_id in cluster.machines))
        assert cluster.failures == {}

    simulate(main, seed=3)


def test_a_follower_that_was_down_while_its_topic_was_replaced_keeps_nothing_of_the_old_one() -> None:
    async def main(cluster: SimulatedCluster) -> None:
        await cluster.create()
        await cluster.send(9)
        gone = next(
            node_id for node_id in cluster.machines if node_id not in (cluster.leader(), cluster.active_controller())
        )
        cluster.down(cluster.machines[gone])
        await delete_topic(cluster)
        cluster.acknowledged.pop(T0)
        while cluster.state() is not None:
            await asyncio.sleep(0.05)
        await cluster.create(on=tuple(cluster.machines))
        await cluster.send(3)
        cluster.start(gone)
        await cluster.until_in_sync()
        assert cluster.replica(gone).log.log_end == 3
        leader = cluster.leader()
        logs = [cluster.replica(node_id).log.read(0, 1 << 20, 3).range.read() for node_id in (gone, leader)]
        assert logs[0] == logs[1]

    simulate(main, seed=4)


def test_several_fetchers_for_one_leader_share_its_partitions() -> None:
    async def main(cluster: SimulatedCluster) -> None:
        await cluster.create(partitions=9)
        for index in range(9):
            await cluster.send(3, TopicPartition("t", index))
        for node_id, machine in cluster.machines.items():
            followed: dict[int, list[int]] = {}
            for fetcher, _ in machine.node.broker._replication._fetchers._fetchers.values():
                followed.setdefault(fetcher.source, []).append(len(fetcher))
            assert node_id not in followed
            assert all(len(counts) == 2 and sum(counts) == 3 for counts in followed.values()), followed
        old = cluster.leader()
        cluster.down(cluster.machines[old])
        for index in range(9):
            await cluster.send(1, TopicPartition("t", index))
        cluster.start(old)
        for index in range(9):
            await cluster.until_in_sync(TopicPartition("t", index))

    simulate(main, seed=5, options={"num.replica.fetchers": "2"})

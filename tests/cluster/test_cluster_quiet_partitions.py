"""Partitions in which nothing happens cost neither their leader nor their followers anything, and lose no member of their ISR."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from tests.cluster.simulated_cluster import T0, SimulatedCluster, simulate

from headrace.base.ids import TopicPartition
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.replication.partition import FollowerFetch, Partition, ReadPlan

IDLE_S = 20.0  # outlasts replica.lag.time.max.ms of the simulated cluster (4 s) several times


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> Counter[TopicPartition]:
    """Count the reads that leaders plan for followers."""
    counts: Counter[TopicPartition] = Counter()
    plan_replica_read = Partition.plan_replica_read

    def plan(self: Partition, fetch: FollowerFetch, max_bytes: int, *, min_one: bool) -> ReadPlan:
        counts[self.name] += 1
        return plan_replica_read(self, fetch, max_bytes, min_one=min_one)

    monkeypatch.setattr(Partition, "plan_replica_read", plan)
    return counts


def test_a_fetch_looks_only_at_the_partitions_that_have_changed(planned: Counter[TopicPartition]) -> None:
    async def main(cluster: SimulatedCluster) -> None:
        await cluster.create(partitions=8)
        await asyncio.sleep(IDLE_S)
        planned.clear()
        await asyncio.sleep(IDLE_S)
        assert not planned
        await cluster.send(3)
        await cluster.until_in_sync()
        assert planned[T0] >= 3 and planned.keys() == {T0}

    simulate(main)


def test_a_follower_of_a_quiet_partition_stays_in_sync_when_records_arrive() -> None:
    async def main(cluster: SimulatedCluster) -> None:
        await cluster.create()
        epoch = cluster.state().partition_epoch
        for _ in range(3):
            await asyncio.sleep(IDLE_S)
            await cluster.send()
        await asyncio.sleep(IDLE_S)
        assert cluster.is_in_sync() and cluster.state().partition_epoch == epoch

    simulate(main, seed=2)


def test_a_follower_that_dies_while_a_partition_is_quiet_leaves_the_isr_when_records_arrive() -> None:
    async def main(cluster: SimulatedCluster) -> None:
        await cluster.create()
        follower = next(
            node_id for node_id in cluster.machines if node_id not in (cluster.leader(), cluster.active_controller())
        )
        await asyncio.sleep(IDLE_S)
        cluster.machines[follower].pause()
        await cluster.send()
        assert follower not in cluster.state().isr
        cluster.machines[follower].resume()
        await cluster.until_in_sync()

    simulate(main, seed=3)


def test_the_first_record_of_a_new_topic_does_not_wait_for_parked_fetches() -> None:
    async def main(cluster: SimulatedCluster) -> None:
        await cluster.create(partitions=6)
        times = []
        for number in range(9):
            name = TopicPartition(f"new-{number}", 0)
            await asyncio.sleep(3.3)
            topic = CreateTopicsRequest.CreatableTopic(name=name.topic, num_partitions=1, replication_factor=3)
            await cluster.client.request(CreateTopicsRequest(topics=[topic]))
            began = cluster.loop.now
            await cluster.send(name=name)
            times.append(cluster.loop.now - began)
        # A parked fetch lasts 0.5 s. Single records may take longer: the client pauses if the leader has not opened its log yet.
        assert sorted(times)[len(times) // 2] < 0.1, times

    simulate(main, seed=4)

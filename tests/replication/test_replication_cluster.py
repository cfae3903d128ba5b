"""A leader and two followers: replication, changes of the leader, slow and restarted followers, and random schedules of all that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from tests.replication.replicated_cluster import NAME, NODES, ReplicatedCluster, batches

from headrace.base.errors import ErrorCode
from headrace.client.wire.connection import Disconnected

SEEDS = range(25)


def run(cluster: ReplicatedCluster, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
    try:
        cluster.loop.run_until_complete(main())
        assert cluster.loop.unhandled() == []
    finally:
        cluster.loop.close()


async def started(cluster: ReplicatedCluster) -> None:
    cluster.start()
    await cluster.until(cluster.is_in_sync)


def test_acknowledged_records_are_on_all_in_sync_replicas() -> None:
    cluster = ReplicatedCluster(1)

    async def main() -> None:
        await started(cluster)
        leader = cluster.leader
        for _ in range(20):
            code, offset = await cluster.produce(leader.node_id)
            assert code is ErrorCode.NONE
            assert all(broker.partition.log.log_end > offset for broker in cluster.brokers.values())
        await cluster.until(cluster.is_in_sync)
        end = leader.partition.log.log_end
        assert [batches(cluster.brokers[node].partition, 0, end) for node in NODES[1:]] == [
            batches(leader.partition, 0, end)
        ] * 2

    run(cluster, main)


def test_followers_learn_the_high_watermark_without_waiting_for_more_records() -> None:
    cluster = ReplicatedCluster(2)

    async def main() -> None:
        await started(cluster)
        await cluster.produce(cluster.leader.node_id)
        began = cluster.loop.time()
        await cluster.until(cluster.is_in_sync)
        assert cluster.loop.time() - began < 0.05  # far less than replica.fetch.wait.max.ms

    run(cluster, main)


def test_a_follower_that_lags_leaves_the_isr_and_returns_when_it_has_caught_up() -> None:
    cluster = ReplicatedCluster(3)

    async def main() -> None:
        await started(cluster)
        leader = cluster.leader.node_id
        slow = next(node for node in NODES if node != leader)
        cluster.cut.add(frozenset((slow, leader)))
        code, _ = await cluster.produce(leader, timeout_ms=5000)  # waits until the ISR has shrunk
        assert code is ErrorCode.NONE
        assert slow not in cluster.controller.partition.isr
        cluster.heal()
        await cluster.until(cluster.is_in_sync)

    run(cluster, main)


def test_with_too_few_replicas_nothing_is_acknowledged_or_visible() -> None:
    cluster = ReplicatedCluster(4)

    async def main() -> None:
        await started(cluster)
        leader = cluster.leader
        for node in NODES:
            if node != leader.node_id:
                cluster.crash(node)
        await cluster.until(lambda: leader.partition.isr == (leader.node_id,))
        before = leader.partition.high_watermark
        assert (await cluster.produce(leader.node_id))[0] is ErrorCode.NOT_ENOUGH_REPLICAS
        assert (await cluster.produce(leader.node_id, acks=1))[0] is ErrorCode.NONE
        assert leader.partition.high_watermark == before < leader.partition.log.log_end
        cluster.start()
        await cluster.until(cluster.is_in_sync)

    run(cluster, main)


def test_a_wait_for_followers_ends_with_a_timeout_or_with_the_leadership() -> None:
    cluster = ReplicatedCluster(5)

    async def main() -> None:
        await started(cluster)
        leader = cluster.leader
        cluster.cut |= {frozenset((leader.node_id, node)) for node in NODES}
        assert (await cluster.produce(leader.node_id, timeout_ms=100))[0] is ErrorCode.REQUEST_TIMED_OUT
        waiting = asyncio.ensure_future(cluster.produce(leader.node_id, timeout_ms=60_000))
        await asyncio.sleep(0.05)
        cluster.controller.elect(next(node for node in NODES if node != leader.node_id))
        assert (await waiting)[0] is ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND  # it may have been written
        assert not leader.partition._acks

    run(cluster, main)


def test_an_old_leader_truncates_what_was_never_committed() -> None:
    cluster = ReplicatedCluster(6)

    async def main() -> None:
        await started(cluster)
        old = cluster.leader
        await cluster.produce(old.node_id)
        cluster.cut |= {frozenset((old.node_id, node)) for node in (0, *NODES)}
        await cluster.produce(old.node_id, acks=1)
        await cluster.produce(old.node_id, acks=1)
        cluster.controller.fence(old.node_id)
        await cluster.until(lambda: cluster.leader is not None and cluster.leader.partition.is_leader)
        new = cluster.leader
        code, offset = await cluster.produce(new.node_id)
        assert code is ErrorCode.NONE and offset < old.partition.log.log_end
        cluster.heal()
        cluster.controller.register_again(old.node_id)
        await cluster.until(cluster.is_in_sync)

    run(cluster, main)


def test_a_producers_duplicate_is_recognized_by_the_next_leader() -> None:
    cluster = ReplicatedCluster(7)
    producer = {"producer_id": 9, "producer_epoch": 0}

    async def main() -> None:
        await started(cluster)
        first = await cluster.produce(cluster.leader.node_id, **producer, base_sequence=0)
        old = cluster.leader.node_id
        cluster.crash(old)
        await cluster.until(lambda: cluster.leader is not None and cluster.leader.partition.is_leader)
        entry = cluster.leader.partition.log.producers.entry(9)
        assert entry.batches[-1].first_offset == first[1]

    run(cluster, main)


def test_a_new_leader_refuses_a_later_sequence_of_a_producer_that_it_does_not_know() -> None:
    cluster = ReplicatedCluster(8)
    producer = {"producer_id": 9, "producer_epoch": 0}

    async def main() -> None:
        await started(cluster)
        old = cluster.leader
        cluster.cut |= {frozenset((old.node_id, node)) for node in (0, *NODES)}
        assert (await cluster.produce(old.node_id, acks=1, **producer, base_sequence=0))[0] is ErrorCode.NONE
        cluster.crash(old.node_id)
        cluster.heal()
        await cluster.until(lambda: cluster.leader is not None and cluster.leader.partition.is_leader)
        new = cluster.leader.node_id
        refused = await cluster.produce(new, **producer, base_sequence=3)
        assert refused[0] is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        assert (await cluster.produce(new, **producer, base_sequence=0))[0] is ErrorCode.NONE

    run(cluster, main)


class RandomSchedule:
    """Faults and producers by seed, with checks of every replica after each step."""

    def __init__(self, seed: int) -> None:
        self.cluster = ReplicatedCluster(seed)
        self.random = self.cluster.random
        self.committed: dict[int, bytes] = {}
        self.watermarks: dict[tuple[int, int, int], int] = {}

    async def run(self) -> None:
        cluster = self.cluster
        await started(cluster)
        producers = [asyncio.ensure_future(self.produce()) for _ in range(3)]
        for _ in range(40):
            self.inject()
            await asyncio.sleep(self.random.uniform(0, 0.4))
            self.check()
        cluster.heal()
        cluster.start()
        for broker in cluster.brokers.values():
            self.unfence(broker.node_id)
        for producer in producers:
            producer.cancel()
        await cluster.until(cluster.is_in_sync)
        self.check()
        log = batches(cluster.leader.partition, 0, cluster.leader.partition.log.log_end)
        for offset, payload in cluster.acknowledged.items():
            assert payload in log.get(offset, b""), f"acknowledged offset {offset} is lost: {cluster.describe()}"
        assert len(cluster.acknowledged) > 20

    async def produce(self) -> None:
        while True:
            target = (
                self.cluster.controller.partition.leader if self.random.random() < 0.9 else self.random.choice(NODES)
            )
            try:
                await self.cluster.produce(target, acks=self.random.choice([-1, -1, 1]), timeout_ms=300)
            except Disconnected:
                await asyncio.sleep(0.02)
            await asyncio.sleep(self.random.uniform(0, 0.02))

    def inject(self) -> None:
        cluster, random = self.cluster, self.random
        node = random.choice(NODES)
        match random.randrange(9):
            case 0 if node in cluster.brokers:
                isr = cluster.controller.partition.isr
                cluster.crash(node, power=node not in isr or len(isr) > 1)
            case 1 | 2 if node not in cluster.brokers:
                cluster.start_one(node)
            case 3:
                cluster.cut.add(frozenset((node, random.choice((0, *NODES)))))
            case 4 | 5:
                cluster.heal()
                for one in cluster.brokers:
                    self.unfence(one)
            case 6:
                cluster.controller.elect(node)
            case 7:
                cluster.loss = random.choice([0.0, 0.05, 0.2])
                cluster.network_delay_s = random.choice([0.002, 0.05])
                cluster.metadata_delay_s = random.choice([0.02, 0.5])
            case 8 if node in cluster.brokers and len(cluster.controller.partition.isr) > 1:
                cluster.controller.fence(node)

    def unfence(self, node: int) -> None:
        controller = self.cluster.controller
        broker = controller.brokers[node]
        if broker.fenced and node in self.cluster.brokers and broker.epoch == self.cluster.brokers[node].epoch:
            controller.register_again(node)

    def check(self) -> None:
        for node, broker in self.cluster.brokers.items():
            partition = broker.partition
            if partition is None:
                continue
            partition.log.check()
            high = partition.high_watermark
            assert partition.log.log_start <= high <= partition.log.log_end
            if partition.is_leader:
                key = (node, broker.epoch, partition.leader_epoch)
                assert high >= self.watermarks.get(key, 0), "the high watermark of a leader goes back"
                self.watermarks[key] = high
            for offset, batch in batches(partition, 0, high).items():
                known = self.committed.setdefault(offset, batch)
                assert known == batch, f"{NAME} has two committed batches at {offset}: {self.cluster.describe()}"


@pytest.mark.parametrize("seed", SEEDS)
def test_no_schedule_loses_or_forks_what_is_committed(seed: int) -> None:
    schedule = RandomSchedule(seed)
    run(schedule.cluster, schedule.run)

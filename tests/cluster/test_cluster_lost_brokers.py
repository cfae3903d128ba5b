"""A client that asks who leads instead of a dead broker is told so by the first response."""

from __future__ import annotations

import asyncio

from tests.cluster.simulated_cluster import T0, SimulatedCluster, simulate

from headrace.base.ids import TopicPartition
from headrace.broker.membership.lost_brokers import FENCED_LISTED_S, SUSPECT_S
from headrace.client.wire.cluster import Cluster
from headrace.protocol.messages.metadata import MetadataRequest, MetadataResponse

RESET_S = 0.01  # time until the other brokers know that the connections of a dead one are closed


async def leader_of(client: Cluster, node_id: int, index: int = 0) -> int:
    """Return the leader of a partition that one broker names."""
    topics = [MetadataRequest.MetadataRequestTopic(name=T0.topic)]
    connection = await client.broker(node_id)
    response: MetadataResponse = await connection.request(MetadataRequest(topics=topics))
    partitions = {partition.partition_index: partition for partition in response.topics[0].partitions}
    return partitions[index].leader_id


def others(cluster: SimulatedCluster, *node_ids: int) -> list[int]:
    return [node_id for node_id in cluster.machines if node_id not in node_ids]


def test_the_first_response_after_the_death_of_a_leader_names_the_next_one() -> None:
    async def main(cluster: SimulatedCluster) -> None:
        await cluster.create(partitions=3)
        controller = cluster.active_controller()  # its death would need another election first
        leaders = {index: cluster.leader(TopicPartition("t", index)) for index in range(3)}
        index, leader = next(item for item in leaders.items() if item[1] != controller)
        survivor = others(cluster, leader, controller)[0]
        assert await leader_of(cluster.client, survivor, index) == leader
        cluster.down(cluster.machines[leader])
        await asyncio.sleep(RESET_S)
        began = cluster.loop.now
        assert await leader_of(cluster.client, survivor, index) not in (leader, -1)
        assert cluster.loop.now - began < SUSPECT_S

    simulate(main)


def test_a_response_is_held_back_for_a_moment_only() -> None:
    async def main(cluster: SimulatedCluster) -> None:
        await cluster.create()
        leader = cluster.leader()
        (first, second) = others(cluster, leader)
        assert await leader_of(cluster.client, first) == leader
        cluster.down(cluster.machines[second])  # without a majority, nobody elects another leader
        cluster.down(cluster.machines[leader])
        await asyncio.sleep(RESET_S)
        began = cluster.loop.now
        assert await leader_of(cluster.client, first) == leader
        assert 0 < cluster.loop.now - began < 2 * SUSPECT_S

    simulate(main, seed=2)


def test_requests_about_other_leaders_are_answered_at_once() -> None:
    async def main(cluster: SimulatedCluster) -> None:
        await cluster.create()
        leader = cluster.leader()
        first, second = others(cluster, leader)
        cluster.down(cluster.machines[first])
        await asyncio.sleep(RESET_S)
        began = cluster.loop.now
        assert await leader_of(cluster.client, second) == leader
        assert cluster.loop.now - began < 0.05

    simulate(main, seed=3)


def test_a_dead_broker_is_listed_for_a_few_seconds_more() -> None:
    async def listed(client: Cluster, node_id: int) -> list[int]:
        response: MetadataResponse = await (await client.broker(node_id)).request(MetadataRequest(topics=[]))
        return sorted(broker.node_id for broker in response.brokers)

    async def main(cluster: SimulatedCluster) -> None:
        await cluster.create()
        leader = cluster.leader()
        survivor = others(cluster, leader)[0]
        assert await listed(cluster.client, survivor) == [1, 2, 3]
        cluster.down(cluster.machines[leader])
        await cluster.until(lambda: cluster.leader() != leader)
        assert await listed(cluster.client, survivor) == [1, 2, 3]
        await asyncio.sleep(FENCED_LISTED_S + 1)
        assert await listed(cluster.client, survivor) == others(cluster, leader)

    simulate(main, seed=4)

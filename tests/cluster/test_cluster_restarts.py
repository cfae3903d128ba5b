"""All nodes killed at once, and all machines without power: whatever the order of the restarts, everything acknowledged is there."""

from __future__ import annotations

import asyncio
from itertools import permutations

import pytest
from tests.cluster.simulated_cluster import SimulatedCluster, simulate

PARTITIONS = 3


@pytest.mark.parametrize("order", list(permutations((1, 2, 3))))
def test_nodes_that_are_all_killed_at_once_may_be_restarted_in_any_order(order: tuple[int, int, int]) -> None:
    """Two of the three form a quorum before the third is started."""

    async def main(cluster: SimulatedCluster) -> None:
        await cluster.create()
        await cluster.send(10)
        for machine in cluster.machines.values():
            cluster.down(machine)
        cluster.start(order[0])
        await asyncio.sleep(3.0)
        assert cluster.running == {}  # one of three waits for a majority
        cluster.start(order[1])
        await cluster.until_up(*order[:2])
        await cluster.until_controller()
        await asyncio.sleep(3.0)
        cluster.start(order[2])
        await cluster.until_in_sync()
        await cluster.send(5)
        assert cluster.failures == {}

    simulate(main, seed=sum(node_id * 10**place for place, node_id in enumerate(order)))


def test_with_flush_messages_a_power_loss_of_all_machines_loses_nothing_acknowledged() -> None:
    async def main(cluster: SimulatedCluster) -> None:
        await cluster.create(flush_messages="1")
        await cluster.send(30)
        for machine in cluster.machines.values():
            cluster.down(machine, power=True)
        cluster.start()
        await cluster.until_in_sync()
        await cluster.send(5)

    simulate(main, seed=20)


@pytest.mark.parametrize("lost", [1, 2, 3])
def test_a_power_loss_of_one_machine_loses_nothing_although_it_did_not_sync(lost: int) -> None:
    async def main(cluster: SimulatedCluster) -> None:
        await cluster.create()
        await cluster.send(30)
        cluster.down(cluster.machines[lost], power=True)
        await cluster.send(5)
        cluster.start(lost)
        await cluster.until_in_sync()

    simulate(main, seed=30 + lost)


def test_replicas_that_lose_power_one_after_the_other_do_not_elect_the_one_that_lost_records() -> None:
    """An unclean restart takes a replica out of the ISR and of the eligible leaders (KIP-966)."""

    async def main(cluster: SimulatedCluster) -> None:
        await cluster.create()
        await cluster.send(10)
        for node_id in cluster.machines:
            await cluster.until_in_sync()
            cluster.down(cluster.machines[node_id], power=True)
            await cluster.send(3)
            cluster.start(node_id)
            await cluster.until_up()

    simulate(main, seed=40)

"""Machines of a simulated cluster: combined nodes with static voters, each with its own disk, clock and host name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from random import Random

from headrace.base.ids import new_uuid, uuid_text
from testkit.history import History
from testkit.simulator.loop import SimulatedLoop
from testkit.simulator.machine import PORT, Machine
from testkit.simulator.network import Network

NODES = 3
CONTROLLER_PORT = 9093
UP_S_MAX = 90.0
LOOK_S = 0.1


def host_of(node_id: int) -> str:
    return f"node-{node_id}"


class Machines:
    """The machines of one cluster, with ids from 1."""

    def __init__(
        self,
        count: int,
        loop: SimulatedLoop,
        network: Network,
        random: Random,
        history: History,
        options: Mapping[str, str],
        trace: Callable[[str], None],
    ) -> None:
        cluster_id = uuid_text(new_uuid(random))
        ids = range(1, count + 1)
        voters = ",".join(f"{node_id}@{host_of(node_id)}:{CONTROLLER_PORT}" for node_id in ids)
        self._loop = loop
        self.all = [
            Machine(
                loop,
                network,
                Random(random.getrandbits(64)),
                history,
                {
                    "node.id": str(node_id),
                    "listeners": f"PLAINTEXT://{host_of(node_id)}:{PORT},CONTROLLER://{host_of(node_id)}:{CONTROLLER_PORT}",
                    "controller.listener.names": "CONTROLLER",
                    "controller.quorum.voters": voters,
                    **options,
                },
                trace,
                host=host_of(node_id),
                is_replicated=True,
            )
            for node_id in ids
        ]
        for machine in self.all:
            machine.format(cluster_id)

    @property
    def bootstrap(self) -> tuple[tuple[str, int], ...]:
        return tuple((machine.host, PORT) for machine in self.all)

    @property
    def hosts(self) -> list[str]:
        return [machine.host for machine in self.all]

    def named(self, node_id: int) -> Machine:
        return self.all[node_id - 1]

    @property
    def failures(self) -> list[str]:
        return [f"{machine.host}: {failure}" for machine in self.all for failure in machine.failures]

    def supervise(self) -> list[asyncio.Task[None]]:
        return [self._loop.create_task(machine.supervise()) for machine in self.all]

    async def until_equal_metadata(self) -> None:
        """Wait until every broker knows all committed metadata. Raise AssertionError if that takes too long."""
        deadline = self._loop.now + UP_S_MAX
        await self.until_up()
        while not self._have_equal_metadata():
            assert self._loop.now < deadline, "some broker does not get the newest metadata"
            await asyncio.sleep(LOOK_S)
            await self.until_up()

    def _have_equal_metadata(self) -> bool:
        committed, applied = 0, []
        for node in [machine.node for machine in self.all]:
            assert node is not None and node.controller is not None and node.broker is not None
            committed = max(committed, node.controller.driver.high_watermark)
            applied.append(node.broker.image.offset + 1)
        return min(applied) >= committed

    async def until_up(self) -> None:
        """Wait until every node serves. Raise AssertionError if one does not within a bounded time."""
        deadline = self._loop.now + UP_S_MAX
        for machine in self.all:
            is_up = await machine.until(lambda machine=machine: machine.node is not None, deadline - self._loop.now)  # type: ignore[misc]
            assert is_up, f"{machine.host} does not serve within {UP_S_MAX:.0f} s: {machine.failures}"

"""The schedule of faults of a simulated cluster, drawn from the seed: processes that end or pause, and links that fail."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from random import Random

from headrace.metadata.image import Partition
from headrace.node.node import Node
from testkit.simulator.cluster.machines import CONTROLLER_PORT, Machines
from testkit.simulator.loop import SimulatedLoop
from testkit.simulator.machine import PORT, Machine
from testkit.simulator.network import LATENCY_S, Network

FAULTS_MAX = 6
CALM_S_MAX = 2.5
SLOW_LATENCY_S = 0.02
PAUSE_S = (0.1, 14.0)  # the longest outlast the session of a broker (9 s)
BLOCKED_S = (0.2, 14.0)
FENCING_S = (9.0, 14.0)  # outlasts the session of a broker
BROKEN_S = (3.0, 14.0)
BROKEN_SHARE = 0.5  # share of the connections that take a broken path
KINDS = (
    "kill", "kill", "kill", "kill_the_controller", "kill_two", "kill_all", "stop", "stop", "rolling_restart",
    "pause", "pause", "pause_the_controller", "isolate", "isolate", "isolate_from_all", "one_way", "bridge",
    "cut", "stall", "stall", "slow", "power_loss", "lagging_survivor", "lagging_survivor", "eligible_paused", "eligible_paused",
    "broken_path", "broken_path", "healed_in_part", "healed_in_part", "healed_in_part",
)  # fmt: skip
OUT_OF_SYNC_S_MAX = 35.0  # the longest `replica.lag.time.max.ms` of a seed is 30 s
FENCED_S_MAX = 12.0  # outlasts the session of a broker (9 s)
# Only in seeds that sync every record before it is acknowledged.
DURABLE_KINDS = ("power_loss_of_some", "power_loss_of_some", "power_loss_of_some", "power_loss_of_some")
UNSYNCED_S_MAX = 4.0  # how long a fault waits for unsynced metadata
UNSYNCED_LOOK_S = 0.001


class ClusterFaults:
    def __init__(
        self,
        loop: SimulatedLoop,
        network: Network,
        machines: Machines,
        random: Random,
        check: Callable[[], None],
        *,
        is_durable: bool,
    ) -> None:
        """Call `check` before a fault that could hide what the cluster has committed."""
        self._kinds = KINDS + (DURABLE_KINDS if is_durable else ())
        self._check = check
        self._loop = loop
        self._network = network
        self._machines = machines
        self._random = random
        self.done: list[str] = []

    async def run(self) -> None:
        for _ in range(self._random.randint(1, FAULTS_MAX)):
            await self._calm()
            kind = self._random.choice(self._kinds)
            self.done.append(kind)
            await getattr(self, f"_{kind}")()

    async def _calm(self) -> None:
        """Pause, mostly until all nodes are up again; sometimes the next fault hits a cluster that still recovers."""
        await asyncio.sleep(self._random.random() * CALM_S_MAX)
        if self._random.random() < 0.7:
            await self._machines.until_up()
            await asyncio.sleep(self._random.random() * CALM_S_MAX)

    async def heal(self) -> None:
        """End all faults, so that everything must finish from now on."""
        self._network.heal()
        for machine in self._machines.all:
            machine.resume()
            machine.release()
        await self._machines.until_up()

    # --- processes

    def _some(self, count: int = 1) -> list[Machine]:
        return self._random.sample(self._machines.all, count)

    def _active_controller(self) -> Machine:
        """Return the machine whose node leads the metadata quorum, or any machine if there is none."""
        for machine in self._machines.all:
            controller = None if machine.node is None else machine.node.controller
            if controller is not None and controller.driver.is_leader:
                return machine
        return self._some()[0]

    async def _kill(self) -> None:
        """Kill a node, half of the time after slowing the network, so that more writes are not yet replicated."""
        if self._random.random() < 0.5:
            self._network.latency_s = SLOW_LATENCY_S
            await asyncio.sleep(self._random.random() * 0.3)
        self._some()[0].kill()
        self._network.latency_s = LATENCY_S

    async def _kill_the_controller(self) -> None:
        self._active_controller().kill()

    async def _kill_two(self) -> None:
        for machine in self._some(2):
            machine.kill()

    async def _kill_all(self) -> None:
        for machine in self._some(len(self._machines.all)):
            machine.kill()

    async def _stop(self) -> None:
        await self._some()[0].stop()

    async def _rolling_restart(self) -> None:
        for machine in self._machines.all:
            await self._machines.until_up()
            await machine.stop()

    async def _pause(self) -> None:
        await self._pause_one(self._some()[0])

    async def _pause_the_controller(self) -> None:
        await self._pause_one(self._active_controller())

    async def _pause_one(self, machine: Machine) -> None:
        machine.pause()
        await asyncio.sleep(self._random.uniform(*PAUSE_S) ** self._random.random())
        machine.resume()

    async def _power_loss(self) -> None:
        """Take the power from one machine while all others have everything, and let it catch up before the next fault.

        Records are acknowledged from the page cache, so only a loss of several machines may lose any.
        """
        await self._until_in_sync()
        self._some()[0].lose_power()
        await self._until_in_sync()

    async def _power_loss_of_some(self) -> None:
        """Take the power from one, two or all machines, mostly while two of them have not synced their metadata."""
        chosen = self._some(self._random.choice((1, 2, 2, 3)))
        if self._random.random() < 0.8:
            deadline = self._loop.now + UNSYNCED_S_MAX
            while sum(map(_has_unsynced_metadata, chosen)) < min(2, len(chosen)) and self._loop.now < deadline:
                await asyncio.sleep(UNSYNCED_LOOK_S)
        self._check()
        for machine in chosen:
            machine.lose_power()

    async def _until_in_sync(self) -> None:
        """Wait until all nodes are up and every replica is in sync."""
        self._network.unblock()
        while True:
            await self._machines.until_up()
            if self._is_in_sync():
                return
            await asyncio.sleep(0.1)

    def _is_in_sync(self) -> bool:
        node = self._active_controller().node
        if node is None or node.controller is None or not node.controller.driver.is_leader or node.broker is None:
            return False
        return len(node.broker.image.live_brokers()) == len(self._machines.all) and all(
            len(partition.isr) == len(partition.replicas) for partition in _partitions(node)
        )

    # --- the last replica in sync

    async def _lagging_survivor(self) -> None:
        """Kill the leader, the last replica in sync, while one replica lags and another has restarted without it."""
        leader, second = await self._fall_behind()
        self._block_replication(leader, second)
        second.kill()
        await second.until_up()
        await asyncio.sleep(self._random.random())
        leader.hold()
        leader.kill()
        await asyncio.sleep(self._random.random() * FENCED_S_MAX)
        leader.release()
        await self._until_in_sync()

    async def _eligible_paused(self) -> None:
        """Take the power from the leader while the only other replica with all records is paused, and one lags."""
        leader, second = await self._fall_behind()
        second.pause()
        await asyncio.sleep(self._random.random() * FENCED_S_MAX)
        leader.lose_power()
        await asyncio.sleep(self._random.random() * FENCED_S_MAX)
        second.resume()
        await self._until_in_sync()

    async def _fall_behind(self) -> tuple[Machine, Machine]:
        """Block the replication to one replica of some partition until it is out of sync.

        Return the machines of the leader and of the other replica, which stays in sync.
        """
        await self._until_in_sync()
        node = self._active_controller().node
        assert node is not None
        partition = self._random.choice(_partitions(node))
        leader = self._machines.named(partition.leader)
        second, lagging = self._random.sample([one for one in self._machines.all if one is not leader], 2)
        for other in (leader, second):
            self._block_replication(lagging, other)
        deadline = self._loop.now + OUT_OF_SYNC_S_MAX
        while self._is_in_sync() and self._loop.now < deadline:
            await asyncio.sleep(0.1)
        await asyncio.sleep(self._random.random() * 2)
        return leader, second

    def _block_replication(self, one: Machine, other: Machine) -> None:
        """Block the port for clients and brokers between two nodes, but not that of the controllers."""
        self._network.block(one.host, other.host, PORT)
        self._network.block(other.host, one.host, PORT)

    # --- links

    async def _isolate(self) -> None:
        """Cut one node off the others; clients still reach it."""
        (one,) = self._some()
        for other in self._machines.hosts:
            if other != one.host:
                self._block_both(one.host, other)
        await self._until_unblocked()

    async def _isolate_from_all(self) -> None:
        """Cut one node off the others and off the clients."""
        (one,) = self._some()
        for other in ("", *self._machines.hosts):
            if other != one.host:
                self._block_both(one.host, other)
        await self._until_unblocked()

    async def _one_way(self) -> None:
        """Let nothing arrive from one node at another."""
        source, target = self._some(2)
        self._network.block(source.host, target.host)
        await self._until_unblocked()

    async def _bridge(self) -> None:
        """Leave one node that reaches all others, which do not reach each other."""
        bridge = self._some()[0].host
        for one, other in itertools.combinations([host for host in self._machines.hosts if host != bridge], 2):
            self._block_both(one, other)
        await self._until_unblocked()

    def _block_both(self, one: str, other: str) -> None:
        self._network.block(one, other)
        self._network.block(other, one)

    async def _until_unblocked(self) -> None:
        await asyncio.sleep(self._random.uniform(*BLOCKED_S))
        self._network.unblock()

    async def _cut(self) -> None:
        self._network.cut_some(self._random.randint(1, 6))

    async def _stall(self) -> None:
        """Stall some connections to the controllers while others work, so that a broker's metadata is old though it is alive."""
        found = self._network.connections_to(CONTROLLER_PORT)
        chosen = self._random.sample(found, self._random.randint(1, max(1, len(found) // 2))) if found else []
        seconds = self._random.uniform(*BLOCKED_S)
        self._network.stall(chosen, seconds)
        await asyncio.sleep(seconds)

    async def _broken_path(self) -> None:
        """Break one of the paths between the controller and another node, sometimes while leadership returns to a third node.

        The metadata of the other node may be old while its heartbeats are answered: these are different connections.
        """
        controller = self._active_controller()
        returning, other = self._random.sample([one for one in self._machines.all if one is not controller], 2)
        if self._random.random() < 0.8:
            returning.kill()
            await returning.until_up()
        seconds = self._random.uniform(*BROKEN_S)
        self._network.break_path(controller.host, other.host, BROKEN_SHARE, seconds)
        await asyncio.sleep(seconds)

    async def _healed_in_part(self) -> None:
        """Cut one node off the others until it is fenced, and then repair only some of its paths to the controller.

        Its heartbeats may be answered again before it learns from the metadata that others lead its partitions.
        """
        (one,) = self._some()
        for other in self._machines.hosts:
            if other != one.host:
                self._block_both(one.host, other)
        await asyncio.sleep(self._random.uniform(*FENCING_S))
        self._network.unblock()
        controller = self._active_controller()
        if controller is not one:
            seconds = self._random.uniform(*BROKEN_S)
            self._network.break_path(controller.host, one.host, BROKEN_SHARE, seconds)
            await asyncio.sleep(seconds)

    async def _slow(self) -> None:
        self._network.latency_s = LATENCY_S * self._random.choice((5, 50))
        self._network.stall_share = self._random.choice((0.0, 0.05))
        self._network.cut_share = self._random.choice((0.0, 0.02))
        await asyncio.sleep(self._random.random() * 3)
        self._network.latency_s, self._network.stall_share, self._network.cut_share = LATENCY_S, 0.0, 0.0


def _has_unsynced_metadata(machine: Machine) -> bool:
    controller = None if machine.node is None else machine.node.controller
    return controller is not None and controller.driver.log.log.recovery_point < controller.driver.log.end_offset


def _partitions(node: Node) -> list[Partition]:
    """Return the partitions that a node's broker knows."""
    assert node.broker is not None
    return [partition for topic in node.broker.image.topics.values() for partition in topic.partitions]

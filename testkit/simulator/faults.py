"""The schedule of faults, drawn from the seed.

In seeds without a power loss, nothing that was acknowledged may be lost. A power loss removes unsynced tails, so seeds with one have no
failing disks: after a failed fsync, it is undefined what a power loss may remove.
"""

from __future__ import annotations

import asyncio
import errno
import os
from random import Random

from testkit.simulator.loop import SimulatedLoop
from testkit.simulator.machine import SECOND_DATA, Machine
from testkit.simulator.network import LATENCY_S, Network

FAULTS_MAX = 7
CALM_S_MAX = 0.9  # maximum pause between two faults, applied once or twice
CHECK_S = 0.02
SLOW_LATENCY_S, SLOW_BEFORE_KILL_S = 0.02, 0.15
DISK_SPACE_MAX = 6_000
REBUILT = (".index", ".timeindex", ".snapshot")
METADATA_DIR = "__cluster_metadata-0"

ALWAYS = ("kill", "kill", "kill", "kill_softly", "kill_twice", "stop", "stop", "cut", "cut", "partition", "slow")
WITHOUT_POWER_LOSS = ("disk_full", "sync_error", "read_error", "flip")
WITH_TWO_DIRS = ("dir_error", "dir_error", "dir_gone")
WITH_POWER_LOSS = ("power_loss", "power_loss", "power_loss", "power_loss_twice", "power_loss_after_stop", "disk_full")


class Faults:
    more: tuple[str, ...] = ()  # kinds that only some seeds have

    def __init__(self, loop: SimulatedLoop, network: Network, machine: Machine, random: Random) -> None:
        self._loop = loop
        self._network = network
        self._machine = machine
        self._random = random
        self.may_lose_power = random.random() < 0.5
        self.done: list[str] = []

    async def run(self) -> None:
        kinds = ALWAYS + (WITH_POWER_LOSS if self.may_lose_power else WITHOUT_POWER_LOSS)
        if self._machine.two_dirs and not self.may_lose_power:
            kinds += WITH_TWO_DIRS
        kinds += self.more
        for _ in range(self._random.randint(1, FAULTS_MAX)):
            await self._calm()
            kind = self._random.choice(kinds)
            self.done.append(kind)
            await getattr(self, f"_{kind}")()

    async def _calm(self) -> None:
        """Pause, mostly until the node is up again; sometimes the next fault hits a node that is still starting."""
        await asyncio.sleep(self._random.random() * CALM_S_MAX)
        if self._random.random() < 0.8:
            await self._machine.until_up()
            await asyncio.sleep(self._random.random() * CALM_S_MAX)

    async def heal(self) -> None:
        """End all faults, so that everything must finish from now on."""
        self._network.heal()
        self._machine.files.capacity = None
        self._machine.files.fault = None
        await self._machine.until_up()
        self._machine.excuse(False)
        if self._machine.offline():
            self._machine.kill()
        elif self._random.random() < 0.5:
            await self._machine.stop()

    async def check_always(self) -> None:
        while True:
            self._machine.check()
            await asyncio.sleep(CHECK_S)

    # --- the process

    async def _kill(self) -> None:
        """Kill the node, half of the time after slowing responses, so that more writes are not yet acknowledged."""
        if self._random.random() < 0.5:
            self._network.latency_s = SLOW_LATENCY_S
            await asyncio.sleep(self._random.random() * SLOW_BEFORE_KILL_S)
        self._machine.kill()
        self._network.latency_s = LATENCY_S

    async def _kill_softly(self) -> None:
        await self._machine.kill_softly()

    async def _kill_twice(self) -> None:
        """Kill the node again while it recovers from the first kill."""
        self._machine.kill()
        boots = self._machine.boots
        await self._machine.until(lambda: self._machine.boots > boots)
        await asyncio.sleep(self._random.random() * 0.05)
        self._machine.kill()

    async def _stop(self) -> None:
        await self._machine.stop()

    async def _power_loss(self) -> None:
        self._machine.lose_power()

    async def _power_loss_twice(self) -> None:
        self._machine.lose_power()
        await asyncio.sleep(self._random.random() * 0.5)
        self._machine.lose_power()

    async def _power_loss_after_stop(self) -> None:
        """Lose power after a clean stop, which guarantees that everything is on disk."""
        await self._machine.stop()
        self._machine.lose_power()

    # --- the network

    async def _cut(self) -> None:
        self._network.cut_some(self._random.randint(1, 4))

    async def _partition(self) -> None:
        self._network.partition(self._random.random() * 1.5)

    async def _slow(self) -> None:
        self._network.latency_s = LATENCY_S * self._random.choice((5, 50))
        self._network.stall_share = self._random.choice((0.0, 0.05))
        self._network.cut_share = self._random.choice((0.0, 0.02))
        await asyncio.sleep(self._random.random() * 2)
        self._network.latency_s, self._network.stall_share, self._network.cut_share = LATENCY_S, 0.0, 0.0

    # --- the disk

    async def _disk_full(self) -> None:
        files = self._machine.files
        self._machine.excuse(True)
        files.capacity = files.used() + self._random.randint(0, DISK_SPACE_MAX)
        await asyncio.sleep(0.2 + self._random.random())
        files.capacity = None
        await self._restart_after_trouble()

    async def _sync_error(self) -> None:
        share = self._random.choice((0.1, 1.0))
        await self._trouble(("sync", "sync_dir"), share)

    async def _read_error(self) -> None:
        await self._trouble(("read",), 0.2)

    async def _dir_error(self) -> None:
        """Fail all writes on one of two disks; the node must continue with the other."""
        await self._trouble(("append", "sync", "sync_dir", "create", "make_dir", "rename"), 1.0, SECOND_DATA)

    async def _dir_gone(self) -> None:
        """Start the node without one of its two disks, then restore the disk."""
        await self._machine.stop()
        self._machine.kill()
        self._machine.excuse(True)
        files = self._machine.files
        files.rename(SECOND_DATA, "/unmounted")
        await self._machine.until_up()
        await asyncio.sleep(self._random.random())
        self._machine.kill()
        if files.exists(SECOND_DATA):
            self._machine.failures.append(f"{SECOND_DATA} was made anew")
            files.remove(SECOND_DATA)
        files.rename("/unmounted", SECOND_DATA)
        await self._restart_after_trouble()

    async def _trouble(self, operations: tuple[str, ...], share: float, below: str = "/") -> None:
        def refuse(operation: str, path: str) -> OSError | None:
            if operation in operations and path.startswith(below) and self._random.random() < share:
                return OSError(errno.EIO, os.strerror(errno.EIO), path)
            return None

        self._machine.excuse(True)
        self._machine.files.fault = refuse
        if self._random.random() < 0.3:
            self._machine.kill()  # so that the node starts on a failing disk
        await asyncio.sleep(0.2 + self._random.random())
        self._machine.files.fault = None
        await self._restart_after_trouble()

    async def _restart_after_trouble(self) -> None:
        """Restart the node if partitions are offline, because only that brings them back; else half of the time."""
        await self._machine.until_up()
        if self._machine.offline() or self._random.random() < 0.5:
            if self._random.random() < 0.5:
                await self._machine.stop()
            else:
                self._machine.kill()
        await self._machine.until_up()
        self._machine.excuse(False)

    async def _flip(self) -> None:
        """Flip one bit of a file that can be rebuilt, while the node is down."""
        if self._random.random() < 0.5:
            await self._machine.stop()
        else:
            self._machine.kill()
        found = [
            (path, contents)
            for path, contents in self._machine.files.walk()
            if path.endswith(REBUILT) and contents.data and METADATA_DIR not in path
        ]
        if found:
            path, contents = self._random.choice(found)
            self._machine.files.flip_bit(path, self._random.randrange(len(contents.data)), self._random.randrange(8))

"""The members of one group, each on its own connection, in one asyncio program; shared by both group protocols.

A member sends heartbeats often, so that it learns of a rebalance soon: the benchmark measures the coordinator, not the
heartbeat interval.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Protocol

from bench.errors import BenchFailed
from bench.systems.requests import CLIENT_ID
from headrace.client.wire.frames import decode_response, encode_request
from headrace.protocol.framing import SIZE
from headrace.testing.processes import LOOPBACK

SESSION_MS = 6000
REBALANCE_MS = 60_000
HEARTBEAT_S = 0.2
STABLE_S_MAX = 120.0
POLL_S = 0.005
CONNECTS_AT_ONCE = 20  # overflowing the listen queue of 50 costs a second


class AsyncConnection:
    """An asyncio connection with one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._correlation_id = 0

    @classmethod
    async def open(cls, port: int) -> AsyncConnection:
        return cls(*await asyncio.open_connection(LOOPBACK, port))

    async def request(self, message: Any, version: int) -> Any:
        """Send a request and return the decoded response."""
        self._correlation_id += 1
        self._writer.write(b"".join(encode_request(message, version, self._correlation_id, CLIENT_ID)))
        (size,) = SIZE.unpack(await self._reader.readexactly(SIZE.size))
        frame = memoryview(await self._reader.readexactly(size))
        return decode_response(message.facts.api_key, version, self._correlation_id, frame)

    def close(self) -> None:
        self._writer.transport.abort()


class Member(Protocol):
    epoch: int  # the generation or member epoch of its assignment
    assigned: Sequence[int]  # partitions of the only topic
    settled: bool  # whether it has nothing to request and nothing to revoke
    running: bool  # false stops it after its pending request

    async def run(self) -> None:
        """Send requests until `running` is false."""

    async def heartbeat(self) -> None: ...
    async def leave(self) -> None: ...
    def close(self) -> None: ...


async def open_connections(port: int, count: int) -> list[AsyncConnection]:
    connections: list[AsyncConnection] = []
    while len(connections) < count:
        some = min(CONNECTS_AT_ONCE, count - len(connections))
        connections += await asyncio.gather(*(AsyncConnection.open(port) for _ in range(some)))
    return connections


class Group:
    """The members of one group and their tasks."""

    def __init__(self, members: Sequence[Member], partitions: int) -> None:
        self.members = list(members)
        self._partitions = partitions
        self._tasks: dict[int, asyncio.Task[None]] = {}

    def start(self) -> None:
        for member in self.members:
            self._tasks[id(member)] = asyncio.create_task(member.run())

    async def wait_until_stable(self, after: int = -1) -> None:
        """Wait until the group is stable. Raise BenchFailed if that takes too long or a member fails.

        It is stable when all members are in one epoch later than `after`, each has its share, and each partition is
        assigned to exactly one of them.
        """
        deadline = time.monotonic() + STABLE_S_MAX
        while not self._is_stable(after):
            for task in self._tasks.values():
                if task.done():
                    task.result()
            if time.monotonic() > deadline:
                raise BenchFailed(f"the group was not stable within {STABLE_S_MAX:.0f} s")
            await asyncio.sleep(POLL_S)

    def _is_stable(self, after: int) -> bool:
        epoch = self.members[0].epoch
        if epoch <= after or any(member.epoch != epoch or not member.settled for member in self.members):
            return False
        if min(len(member.assigned) for member in self.members) < self._partitions // len(self.members):
            return False
        return sorted(index for member in self.members for index in member.assigned) == list(range(self._partitions))

    async def crash(self, count: int) -> None:
        """Stop members without leaving the group: their sessions, renewed by a last heartbeat, time out from now on."""
        crashing, self.members = self.members[-count:], self.members[:-count]
        await self._stop(crashing)
        await asyncio.gather(*(member.heartbeat() for member in crashing))
        for member in crashing:
            member.close()

    async def stop(self) -> None:
        """Stop all members, so that a load can send their heartbeats instead."""
        await self._stop(self.members)

    async def leave(self) -> None:
        await self._stop(self.members)
        await asyncio.gather(*(member.leave() for member in self.members))

    async def _stop(self, members: Sequence[Member]) -> None:
        """Stop these members after their pending requests."""
        for member in members:
            member.running = False
        await asyncio.gather(*(self._tasks.pop(id(member)) for member in members if id(member) in self._tasks))

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        for member in self.members:
            member.close()

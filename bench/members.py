"""Members of one group, each on its own connection, driven by one asyncio program; shared by both protocols.

A member sends heartbeats often, so that it learns of a rebalance soon: the benchmark measures the coordinator, not the
heartbeat interval.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Protocol

from bench.frames import CLIENT_ID
from bench.wire import BenchFailed
from headrace.client.wire.frames import decode_response, encode_request
from headrace.protocol.framing import SIZE
from headrace.testing.processes import LOOPBACK

SESSION_MS = 6000
REBALANCE_MS = 60_000
BEAT_S = 0.2
STABLE_S_MAX = 120.0
LOOK_S = 0.005
CONNECTS_AT_ONCE = 20  # overflowing the listen queue of 50 costs a second


class Channel:
    """One connection with one request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._correlation_id = 0

    @classmethod
    async def open(cls, port: int) -> Channel:
        return cls(*await asyncio.open_connection(LOOPBACK, port))

    async def ask(self, message: Any, version: int) -> Any:
        self._correlation_id += 1
        self._writer.write(b"".join(encode_request(message, version, self._correlation_id, CLIENT_ID)))
        (size,) = SIZE.unpack(await self._reader.readexactly(SIZE.size))
        frame = memoryview(await self._reader.readexactly(size))
        return decode_response(message.facts.api_key, version, self._correlation_id, frame)

    def close(self) -> None:
        self._writer.transport.abort()


class Member(Protocol):
    epoch: int  # the generation or member epoch of its assignment
    held: Sequence[int]  # partitions of the only topic
    settled: bool  # it has nothing to request and nothing to revoke
    alive: bool

    async def live(self) -> None:
        """Send requests until `alive` is false."""

    async def beat(self) -> None: ...
    async def leave(self) -> None: ...
    def close(self) -> None: ...


async def open_channels(port: int, count: int) -> list[Channel]:
    found: list[Channel] = []
    while len(found) < count:
        some = min(CONNECTS_AT_ONCE, count - len(found))
        found += await asyncio.gather(*(Channel.open(port) for _ in range(some)))
    return found


class Crowd:
    """The members of one group and their tasks."""

    def __init__(self, members: Sequence[Member], partitions: int) -> None:
        self.members = list(members)
        self._partitions = partitions
        self._lives: dict[int, asyncio.Task[None]] = {}

    def begin(self) -> None:
        for member in self.members:
            self._lives[id(member)] = asyncio.create_task(member.live())

    async def until_stable(self, after: int = -1) -> None:
        """Wait until the group is stable. Raise BenchFailed if that takes too long or a member fails.

        It is stable when all members are in one epoch later than `after`, each has its share, and each partition is
        held by exactly one of them.
        """
        deadline = time.monotonic() + STABLE_S_MAX
        while not self._is_stable(after):
            for life in self._lives.values():
                if life.done():
                    life.result()
            if time.monotonic() > deadline:
                raise BenchFailed(f"the group was not stable within {STABLE_S_MAX:.0f} s")
            await asyncio.sleep(LOOK_S)

    def _is_stable(self, after: int) -> bool:
        epoch = self.members[0].epoch
        if epoch <= after or any(one.epoch != epoch or not one.settled for one in self.members):
            return False
        if min(len(one.held) for one in self.members) < self._partitions // len(self.members):
            return False
        return sorted(index for one in self.members for index in one.held) == list(range(self._partitions))

    async def let_die(self, count: int) -> None:
        """Let members send a last heartbeat and close their connections; their session timeouts start on return."""
        dying, self.members = self.members[-count:], self.members[:-count]
        await self._stop(dying)
        await asyncio.gather(*(member.beat() for member in dying))
        for member in dying:
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
            member.alive = False
        await asyncio.gather(*(self._lives.pop(id(member)) for member in members if id(member) in self._lives))

    async def close(self) -> None:
        for life in self._lives.values():
            life.cancel()
        await asyncio.gather(*self._lives.values(), return_exceptions=True)
        for member in self.members:
            member.close()

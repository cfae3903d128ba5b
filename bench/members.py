"""Members of one group, each on a connection of its own, driven by one asyncio program: what both protocols have in common.

A member beats often, so that it hears soon of a rebalance: what is measured is the coordinator, not how seldom it is asked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Protocol

from bench.frames import CLIENT_ID
from bench.wire import BenchFailed
from headrace.client.frames import decode_response, encode_request
from headrace.protocol.framing import SIZE
from headrace.testing.processes import LOOPBACK

SESSION_MS = 6000
REBALANCE_MS = 60_000
BEAT_S = 0.2
STABLE_S_MAX = 120.0
LOOK_S = 0.005
CONNECTS_AT_ONCE = 20  # a listen queue of 50 that overflows costs a second


class Channel:
    """One connection, one request at a time."""

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
    epoch: int  # the generation, or the member's epoch, in which it holds what it holds
    held: Sequence[int]  # partitions of the one topic
    settled: bool  # it has nothing to ask and nothing to give back
    alive: bool

    async def live(self) -> None:
        """Until it is not alive any more."""

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
    """Members that live until they are told otherwise."""

    def __init__(self, members: Sequence[Member], partitions: int) -> None:
        self.members = list(members)
        self._partitions = partitions
        self._lives: dict[int, asyncio.Task[None]] = {}

    def begin(self) -> None:
        for member in self.members:
            self._lives[id(member)] = asyncio.create_task(member.live())

    async def until_stable(self, after: int = -1) -> None:
        """All members in one epoch later than `after`, each with its share, each partition held by one of them. BenchFailed if that takes
        too long, or one of them fails."""
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
        """They beat once more and are never heard of again; returns at the moment from which they are missed."""
        dying, self.members = self.members[-count:], self.members[:-count]
        await self._stop(dying)
        await asyncio.gather(*(member.beat() for member in dying))
        for member in dying:
            member.close()

    async def stop(self) -> None:
        """Nobody beats any more, for whoever beats in their place."""
        await self._stop(self.members)

    async def leave(self) -> None:
        await self._stop(self.members)
        await asyncio.gather(*(member.leave() for member in self.members))

    async def _stop(self, members: Sequence[Member]) -> None:
        """Each of them ends its last conversation."""
        for member in members:
            member.alive = False
        await asyncio.gather(*(self._lives.pop(id(member)) for member in members if id(member) in self._lives))

    async def close(self) -> None:
        for life in self._lives.values():
            life.cancel()
        await asyncio.gather(*self._lives.values(), return_exceptions=True)
        for member in self.members:
            member.close()

"""Base class of simulated group members of both protocols: restarts, claims to partitions, and offset commits.

A member claims a partition from the moment it acts on an assignment until it gives the partition up, and no longer than `until`: after
that the coordinator may have removed the member without its knowledge. `until` is counted from when the member sent the last request
whose response proves that it was still in the group, so it is never later than the coordinator's own deadline.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Coroutine
from random import Random
from typing import Any

from headrace.base.errors import KafkaError
from testkit.simulator.clients import BACKOFF_S, LOST, World
from testkit.simulator.groups.offsets import BY_ID_VERSION_MIN, Group, GroupClient, Place

TAKE, HOLD, GIVE = "take", "hold", "give"

CLOCK_S = 0.01  # seconds by which the coordinator's clock may be ahead, because it counts milliseconds
PACE_S = 0.12
# Probability of each extra action per step.
COMMIT_SHARE, FETCH_SHARE = 0.5, 0.25
DEATH_SHARE, LEAVING_SHARE, SLEEP_SHARE, RESUBSCRIBE_SHARE = 0.012, 0.012, 0.012, 0.02


class GroupMember(GroupClient, ABC):
    """A member that dies, leaves, sleeps and resubscribes at random; subclasses implement one group protocol."""

    commit_versions: tuple[int, ...] = (9, BY_ID_VERSION_MIN)

    def __init__(self, name: str, world: World, random: Random, group: Group, instance_id: str | None) -> None:
        super().__init__(name, world, random, group, instance_id)
        self.owned: dict[Place, None] = {}
        self.until = 0.0
        self.topics = self._subscription()
        self._committing: asyncio.Task[object] | None = None
        self.commit_version = random.choice(self.commit_versions)
        self.fetch_version = random.choice((7, 8, 9, 10))
        self.fetches_stable = random.random() < 0.5

    # --- implemented by each protocol

    @abstractmethod
    async def beat(self) -> None:
        """Do the next step of the protocol. LOST and KafkaError propagate."""

    @abstractmethod
    async def leave(self) -> None: ...

    @abstractmethod
    def begin_again(self) -> None:
        """Reset the state to that of a process that has just started."""

    # --- lifecycle

    async def run(self) -> None:
        await self.until_it_works(self.learn_topics)
        await self.pause(PACE_S * 4)
        while not self.world.stopping:
            if not self.group.quiet:
                await self._live_on()
            try:
                await self.beat()
            except LOST:
                await self.pause(BACKOFF_S)
            except KafkaError as error:
                self.unexpected("beat", error.code)
                await self.pause(BACKOFF_S)
            await self._work()
            await self.pause(PACE_S)
        if self._committing is not None:
            await asyncio.wait([self._committing])
        await self.close()

    def _subscription(self) -> list[str]:
        names = list(self.group.topics)
        return sorted(self.random.sample(names, self.random.randint(1, len(names))))

    async def _live_on(self) -> None:
        kind, session_s = self.random.random(), self.group.session_ms / 1000
        if (kind := kind - DEATH_SHARE) < 0:
            await self._die()
            await self.pause(session_s * 2)
        elif (kind := kind - LEAVING_SHARE) < 0:
            self.give(list(self.owned))
            try:
                await self.leave()
            except LOST:
                pass
            except KafkaError as error:
                self.unexpected("leave", error.code)
            await self._die()
            await self.pause(session_s)
        elif (kind := kind - SLEEP_SHARE) < 0:
            await self.pause(session_s * 2)
            if self.owned and not self.is_working:
                await self.commit(list(self.owned))  # it has not learned of any change in the meantime
        elif (kind := kind - RESUBSCRIBE_SHARE) < 0:
            self.topics = self._subscription()

    async def _die(self) -> None:
        self.give(list(self.owned))
        await self.cluster.close()
        self.lives += 1
        self.until = 0.0
        self.begin_again()

    # --- claims

    @property
    def is_late(self) -> bool:
        return self.world.loop.now >= self.until

    def prolong(self, sent: float) -> None:
        """Extend the claims after a successful response to a request sent at `sent`."""
        allowed_s = min(self.group.session_ms, self.group.rebalance_ms) / 1000 - CLOCK_S
        self.until = max(self.until, sent + allowed_s)
        if self.owned:
            self.history.note(HOLD, member=self.process, group=self.group.name, until=self.until)

    def take(self, places: list[Place], generation: int | None = None) -> None:
        """Claim partitions; `generation` is set if all members of the group share it."""
        new = [place for place in places if place not in self.owned]
        if not new and generation is None:
            return
        self.owned.update(dict.fromkeys(new))
        self.history.note(
            TAKE,
            member=self.process,
            identity=self.instance_id or self.member_id,
            group=self.group.name,
            places=new,
            until=self.until,
            generation=generation,
        )

    def give(self, places: list[Place]) -> None:
        for place in places:
            del self.owned[place]
        if places:
            self.history.note(GIVE, member=self.process, group=self.group.name, places=places)

    # --- offsets

    async def _work(self) -> None:
        """Commit or fetch offsets at random; half of the time concurrently with heartbeats, as real consumers do."""
        if self._committing is not None and not self._committing.done():
            return
        places = [place for place in self.owned if self.random.random() < 0.7]
        if places and not self.is_late and self.group.committing and self.random.random() < COMMIT_SHARE:
            work: Coroutine[Any, Any, object] = self.commit(places)
        elif self.random.random() < FETCH_SHARE:
            work = self.fetch()
        else:
            return
        self._committing = self.world.loop.create_task(work)
        if self.random.random() < 0.5:
            await asyncio.wait([self._committing])

    @property
    def is_working(self) -> bool:
        return self._committing is not None and not self._committing.done()

"""Simulated producers that end a transaction before the markers of the previous one are written.

A coordinator responds to EndTxn once the end is decided, and writes the markers afterwards. If the producer continues in the meantime
with its next epoch or its next producer id, the error must be retriable; the producer must never be fenced.
"""

from __future__ import annotations

import asyncio
from random import Random

from headrace.base.errors import ErrorCode
from testkit.simulator.clients import World
from testkit.simulator.transactions.clients import FENCED, Fenced, Identity, Spoiled
from testkit.simulator.transactions.producers import COMMIT_SHARE, PACE_S, QUIET_S, EpochProducer

TIMEOUT_MS = 600_000  # longer than any run, clocks that jump included
EMPTY_SHARE, PAUSE_SHARE = 0.4, 0.2


class EagerProducer(EpochProducer):
    """The only user of its transactional id, with a timeout that never expires: fencing it is an error."""

    has_ghosts = False  # a late copy of its own InitProducerId would rightly fence it

    def __init__(
        self,
        name: str,
        world: World,
        chance: Random,
        identity: Identity,
        topic: str,
        partitions: int,
        transactions: int,
    ) -> None:
        super().__init__(name, world, chance, identity, topic, partitions, transactions)
        self._timeout_ms = TIMEOUT_MS
        self.may_expire = False  # the coordinator may expire the transactional id while it is unused

    def may_die(self) -> None:
        return

    async def run(self) -> None:
        await self.find_topic(self.topic)
        is_known = False
        while self._left > 0 and not self.world.stopping:
            self._left -= 1
            try:
                if not is_known:
                    await self._init_undisturbed()
                    is_known = True
                await self._play()
            except Fenced:
                is_known = False
            if self.chance.random() < PAUSE_SHARE:
                await self.pause(PACE_S)
        await self.close()

    async def _init_undisturbed(self) -> None:
        """Initialize until no earlier InitProducerId of this producer can still arrive."""
        while True:
            self.is_lost = False
            await self._begin_anew()
            if not self.is_lost:
                return
            await asyncio.sleep(QUIET_S)

    async def _play(self) -> None:
        self._transactions += 1
        self._transaction = f"{self.name}-{self._transactions}"
        commits = False
        if self.chance.random() >= EMPTY_SHARE:
            indexes = self.chance.sample(range(self._partitions), self.chance.randint(1, self._partitions))
            try:
                await self._send(indexes)
                commits = self.chance.random() < COMMIT_SHARE
            except Spoiled:
                commits = False
        await self._end(commits)

    def judge(self, what: str, code: ErrorCode) -> None:
        if code in FENCED and not (self.may_expire and code is ErrorCode.INVALID_PRODUCER_ID_MAPPING):
            self.unexpected(what, code)
        super().judge(what, code)

"""Simulated producers that end a transaction before the markers of the previous one are written.

A coordinator responds to EndTxn once the end is decided, and writes the markers afterwards. If the producer continues in the meantime
with its next epoch or its next producer id, the error must be retriable; the producer must never be fenced.
"""

from __future__ import annotations

import asyncio

from headrace.base.errors import ErrorCode
from testkit.simulator.transactions.clients import FENCED, Spoiled
from testkit.simulator.transactions.producers import COMMIT_SHARE, QUIET_S, EpochProducer

TIMEOUT_MS = 600_000  # longer than any run, clocks that jump included
EMPTY_SHARE, PAUSE_SHARE = 0.4, 0.2


class EagerProducer(EpochProducer):
    """The only user of its transactional id, with a timeout that never expires: fencing it is an error."""

    has_ghosts = False  # a late copy of its own InitProducerId would rightly fence it
    may_expire = False  # whether the coordinator may expire the transactional id while it is unused

    def choose_timeout_ms(self) -> int:
        super().choose_timeout_ms()  # drawn nevertheless: the traces of earlier seeds stay valid
        return TIMEOUT_MS

    def may_die(self) -> None:
        return

    async def initialize(self) -> None:
        """Initialize until no earlier InitProducerId of this producer can still arrive."""
        while True:
            self.is_lost = False
            await super().initialize()
            if not self.is_lost:
                return
            await asyncio.sleep(QUIET_S)

    async def rest(self) -> None:
        if self.random.random() < PAUSE_SHARE:
            await super().rest()

    async def run_transaction(self) -> None:
        self._transactions += 1
        self._transaction = f"{self.name}-{self._transactions}"
        commits = False
        if self.random.random() >= EMPTY_SHARE:
            indexes = self.random.sample(range(self._partitions), self.random.randint(1, self._partitions))
            try:
                await self._send(indexes)
                commits = self.random.random() < COMMIT_SHARE
            except Spoiled:
                commits = False
        await self._end(commits)

    def judge(self, what: str, code: ErrorCode) -> None:
        if code in FENCED and not (self.may_expire and code is ErrorCode.INVALID_PRODUCER_ID_MAPPING):
            self.unexpected(what, code)
        super().judge(what, code)

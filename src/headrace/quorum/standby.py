"""Keeps a state machine up to date with the committed metadata log, and makes it lead when this node leads the quorum.

A node that does not lead applies what the leader commits, so that it can take over in milliseconds. Loading, following and taking over
are steps of one task, which applies batches in slices.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Protocol

from headrace.base.clock import Clock
from headrace.quorum.driver import QuorumDriver
from headrace.quorum.journal import QuorumJournal
from headrace.quorum.snapshots import SnapshotFiles, SnapshotId
from headrace.statemachine.journal import NotLeader
from headrace.statemachine.runtime import Runtime

log = logging.getLogger(__name__)

SLICE_S = 0.005  # time after which applying yields to the event loop


class Resettable(Protocol):
    def reset(self) -> None:
        """Return to the state before the first record."""


class Standby:
    """Follows the quorum for one state machine; `run` does the work.

    `on_followed` is called with the last offset of each batch that was applied, `on_loaded` when a snapshot has replaced the
    state, `on_active` when the state machine leads.
    """

    def __init__(
        self,
        driver: QuorumDriver,
        journal: QuorumJournal,
        runtime: Runtime[Any, Any],
        machine: Resettable,
        snapshots: SnapshotFiles,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._driver = driver
        self._journal = journal
        self._runtime = runtime
        self._machine = machine
        self._snapshots = snapshots
        self._clock = clock
        self._loop = loop
        self._next = 0  # the first offset that is not applied, while this node does not lead
        self._must_load = True  # the state has to be rebuilt from the newest snapshot and the log
        self._epoch = -1  # the epoch in which this node leads and has committed a record; -1: it does not lead
        self._active_epoch = -1  # the epoch in which the state machine leads; -1: it follows
        self._wake = asyncio.Event()
        self.on_followed: Callable[[int], None] | None = None
        self.on_loaded: Callable[[], None] | None = None
        self.on_active: Callable[[], None] | None = None
        self.ready: asyncio.Future[None] = (
            loop.create_future()
        )  # the state machine leads, or has caught up with the leader
        driver.on_committed(lambda high_watermark: self._wake.set())
        driver.on_leading(self._leading)
        driver.on_lost(self._lost)
        driver.on_installed(self._installed)
        driver.joined.add_done_callback(lambda joined: self._wake.set())

    @property
    def applied_end(self) -> int:
        """Return the end of what the committed state contains."""
        return self._driver.high_watermark if self._runtime.leading else self._next

    def _leading(self, epoch: int) -> None:
        self._epoch = epoch
        self._wake.set()

    def _lost(self) -> None:
        """Follow again. What was applied but not committed may never be, and not all of the machine's state can be undone."""
        if self._active_epoch >= 0:
            self._next = self._driver.high_watermark
            self._must_load = self._must_load or self._driver.log.end_offset > self._next
        self._epoch = self._active_epoch = -1
        self._wake.set()

    def _installed(self, snapshot: SnapshotId) -> None:
        self._must_load = True
        self._wake.set()

    async def run(self) -> None:
        """Follow the log until cancelled. If the log cannot be read or applied, the driver fails."""
        self._wake.set()
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                await self._catch_up()
        except Exception as error:
            log.exception("the metadata could not be applied")
            self._driver.fail(error)

    async def _catch_up(self) -> None:
        if self._must_load:
            await self._load()
        if not self._runtime.leading:
            await self._follow()
        if self._must_load or (not self._runtime.leading and self._next < self._driver.high_watermark):
            self._wake.set()
            return
        if not self._runtime.leading and self._driver.is_leader and self._epoch == self._driver.raft.epoch:
            self._lead()
        has_joined = self._driver.joined.done() and (self._runtime.leading or not self._driver.is_leader)
        if has_joined and not self.ready.done():
            self.ready.set_result(None)

    async def _load(self) -> None:
        """Rebuild the state from the newest snapshot; the log after it follows."""
        self._must_load = False
        self._next = 0
        self._machine.reset()
        newest = self._snapshots.newest
        slices = _Slices(self._loop)
        if newest is not None:
            for batch in self._snapshots.read(newest):
                self._runtime.follow(newest.end_offset - len(batch.records), batch.records)
                await slices.pause_if_due()
                if self._must_load:
                    return
        self._next = self._driver.log.log.log_start if newest is None else newest.end_offset
        if self.on_loaded is not None:
            self.on_loaded()

    async def _follow(self) -> None:
        """Apply what is committed, up to the high watermark of this moment."""
        slices = _Slices(self._loop)
        for first, records in self._journal.read(self._next):
            self._runtime.follow(first, records)
            self._next = first + len(records)
            if self.on_followed is not None:
                self.on_followed(self._next - 1)
            await slices.pause_if_due()
            if self._must_load:
                return

    def _lead(self) -> None:
        self._active_epoch = self._epoch
        try:
            self._runtime.lead(self._clock.now_ms())
        except NotLeader:
            log.info("leadership of epoch %d was lost before the controller could use it", self._epoch)
        else:
            log.info("the controller of this node is active in epoch %d", self._epoch)
            if self.on_active is not None:
                self.on_active()


class _Slices:
    """Divides long work, so that other tasks of the event loop run in between."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._end = loop.time() + SLICE_S

    async def pause_if_due(self) -> None:
        if self._loop.time() > self._end:
            await asyncio.sleep(0)
            self._end = self._loop.time() + SLICE_S

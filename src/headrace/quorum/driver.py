"""Raft with hands: carries out the effects of the node in order, and tells who waits what is committed.

Writes go to the page cache at once; one fsync runs at a time in a thread and covers all that was written before it started
(group commit). The leader counts itself only when that fsync is back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from headrace.base.errors import HeadraceError
from headrace.metadata.records import METADATA_VERSION_MAX
from headrace.quorum.log import MetadataLog
from headrace.quorum.store import ElectionStore
from headrace.raft.messages import BecomeLeader, Committed, Effect, Persist, PersistElection
from headrace.raft.node import RaftNode, Role
from headrace.records.control import ControlRecord
from headrace.statemachine.journal import NotLeader

log = logging.getLogger(__name__)


class QuorumFailed(HeadraceError):
    """The metadata log or the vote could not be made durable: this node must stop."""


class QuorumDriver:
    def __init__(
        self,
        raft: RaftNode,
        metadata_log: MetadataLog,
        store: ElectionStore,
        loop: asyncio.AbstractEventLoop,
        first_control: Sequence[ControlRecord] = (),
    ) -> None:
        """`first_control` goes into a log that is still empty: the voters that formatting decided on."""
        self.raft = raft
        self.log = metadata_log
        self._store = store
        self._loop = loop
        self._first_control = first_control
        self._syncing = False
        self._tell_committed: list[Callable[[int], None]] = []
        self._tell_lost: list[Callable[[], None]] = []
        self._leading = loop.create_future()
        self.failed: asyncio.Future[None] = loop.create_future()

    @property
    def high_watermark(self) -> int:
        return self.raft.high_watermark

    @property
    def is_leader(self) -> bool:
        return self.raft.role is Role.LEADER

    def on_committed(self, tell: Callable[[int], None]) -> None:
        """Told the high watermark whenever it moves, in the order of subscription."""
        self._tell_committed.append(tell)

    def on_lost(self, tell: Callable[[], None]) -> None:
        self._tell_lost.append(tell)

    async def lead(self) -> None:
        """Campaigns, and returns when this node leads and a record of its epoch is committed."""
        self._carry_out(self.raft.campaign())
        await asyncio.shield(self._leading)

    def propose(self, records: Sequence[Any], metadata_version: int = METADATA_VERSION_MAX) -> int:
        """Returns the offset of the last record; committed later, or never."""
        if not self.is_leader:
            raise NotLeader("this node does not lead the metadata quorum")
        end = self.log.append(records, self.raft.epoch, metadata_version)
        self._carry_out(self.raft.proposed(end))
        return end - 1

    def resign(self) -> None:
        if self.is_leader:
            self.raft.resign()
            for tell in self._tell_lost:
                tell()

    async def stop(self) -> None:
        """Resigns and leaves the log durable and closed."""
        self.resign()
        while self._syncing:
            await asyncio.sleep(0.001)
        await self._loop.run_in_executor(None, self.log.log.close)

    def abandon(self) -> None:
        self.resign()
        self.log.log.abandon()

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case PersistElection(state):
                    self._in_thread(partial(self._store.save, state), self.raft.election_persisted, state)
                case BecomeLeader():
                    more = () if self.log.end_offset else self._first_control
                    end = self.log.append_leader_change(effect, self.raft.node_id, more)
                    log.info("this node leads the metadata quorum in epoch %d", effect.epoch)
                    self._in_thread(partial(self._store.save, self.raft.state), lambda _: [], None)
                    self._carry_out(self.raft.proposed(end))
                case Persist():
                    self._sync()
                case Committed(high_watermark):
                    for tell in self._tell_committed:
                        tell(high_watermark)
                    if not self._leading.done():
                        self._leading.set_result(None)

    def _sync(self) -> None:
        if self._syncing:
            return  # the running one started before this write; its end starts the next
        plan = self.log.log.pending_sync()
        if plan is None:
            return
        self._syncing = True

        def synced(end_offset: int) -> list[Effect]:
            self._syncing = False
            self.log.log.synced(plan)
            effects = self.raft.persisted(end_offset)
            if self.raft.log_end > end_offset and self.is_leader:
                effects.append(Persist(self.raft.log_end))
            return effects

        self._in_thread(plan.run, synced, plan.offset)

    def _in_thread(self, work: Callable[[], None], then: Callable[[Any], list[Effect]], argument: Any) -> None:
        def done(future: asyncio.Future[None]) -> None:
            if future.cancelled():
                return
            error = future.exception()
            if error is None:
                try:
                    self._carry_out(then(argument))
                except OSError as failure:  # what followed from it could not be written: nobody else would hear of that
                    self._fail(failure)
            else:
                self._fail(error)

        self._loop.run_in_executor(None, work).add_done_callback(done)

    def _fail(self, error: BaseException) -> None:
        """An fsync that failed may have dropped the pages: trying again would report a success that is none."""
        log.critical(
            "the metadata log cannot be made durable (%s): this node stops; check the disk of metadata.log.dir", error
        )
        self.resign()
        if not self.failed.done():
            self.failed.set_exception(QuorumFailed(str(error)))
        if not self._leading.done():
            self._leading.set_exception(QuorumFailed(str(error)))

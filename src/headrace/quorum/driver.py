"""The shell of the raft node: executes its effects in order and notifies subscribers of commits.

Writes go to the page cache immediately. One fsync at a time runs in a thread and covers everything written before it started (group
commit). The leader counts its own replica only when that fsync is done.
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
from headrace.raft.effects import (
    AppendLeaderChange,
    Committed,
    Effect,
    ElectionState,
    Persist,
    PersistElection,
    RoleChanged,
)
from headrace.raft.node import RaftNode
from headrace.raft.roles import Role
from headrace.records.control import ControlRecord
from headrace.statemachine.journal import NotLeader

log = logging.getLogger(__name__)

TICK_S_MIN = 0.01


class QuorumFailed(HeadraceError):
    """The metadata log or the vote could not be made durable; the node must stop."""


class QuorumDriver:
    """Runs one raft node on its log and its election state.

    `first_control` holds the control records for an empty log: the voters that were chosen when the node was formatted.
    """

    def __init__(
        self,
        raft: RaftNode,
        metadata_log: MetadataLog,
        store: ElectionStore,
        loop: asyncio.AbstractEventLoop,
        first_control: Sequence[ControlRecord] = (),
    ) -> None:
        self.raft = raft
        self.log = metadata_log
        self._store = store
        self._loop = loop
        self._first_control = first_control
        self._syncing = False
        self._generation = 0  # of the newest Persist command
        self._timer: asyncio.TimerHandle | None = None
        self._on_committed: list[Callable[[int], None]] = []
        self._on_lost: list[Callable[[], None]] = []
        self._leading = loop.create_future()
        self.failed: asyncio.Future[None] = loop.create_future()

    @property
    def high_watermark(self) -> int:
        return self.raft.high_watermark

    @property
    def is_leader(self) -> bool:
        return self.raft.role is Role.LEADER

    def on_committed(self, callback: Callable[[int], None]) -> None:
        """Call `callback` with the high watermark whenever it advances, in the order of subscription."""
        self._on_committed.append(callback)

    def on_lost(self, callback: Callable[[], None]) -> None:
        self._on_lost.append(callback)

    async def lead(self) -> None:
        """Campaign, and return when this node leads and a record of its epoch is committed."""
        self._execute(self.raft.start(self._now_ms()))
        self._arm()
        await asyncio.shield(self._leading)

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _arm(self) -> None:
        """Call raft's `tick` when it is due."""
        due_s = max(self.raft.wake_ms / 1000, self._loop.time() + TICK_S_MIN)
        self._timer = self._loop.call_at(due_s, self._tick)

    def _tick(self) -> None:
        self._execute(self.raft.tick(self._now_ms()))
        self._arm()

    def propose(self, records: Sequence[Any], metadata_version: int = METADATA_VERSION_MAX) -> int:
        """Append records and return the offset of the last one; they are committed later, or never.

        Raise NotLeader if this node does not lead.
        """
        if not self.is_leader:
            raise NotLeader("this node does not lead the metadata quorum")
        end = self.log.append(records, self.raft.epoch, metadata_version)
        self._execute(self.raft.proposed(end))
        return end - 1

    def resign(self) -> None:
        """Give up leadership for good; this node does not campaign again."""
        if self._timer is not None:
            self._timer.cancel()
        self._execute(self.raft.resign(self._now_ms()))

    async def stop(self) -> None:
        """Resign, wait for the running fsync and close the log, which makes it durable."""
        self.resign()
        while self._syncing:
            await asyncio.sleep(0.001)
        await self._loop.run_in_executor(None, self.log.log.close)

    def abandon(self) -> None:
        self.resign()
        self.log.log.abandon()

    def _execute(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case PersistElection(state):
                    self._in_thread(partial(self._store.save, state), self._election_persisted, state)
                case AppendLeaderChange():
                    more = () if self.log.end_offset else self._first_control
                    end = self.log.append_leader_change(effect, self.raft.key.id, more)
                    log.info("this node leads the metadata quorum in epoch %d", effect.epoch)
                    self._execute(self.raft.proposed(end))
                case Persist(_, generation):
                    self._generation = generation
                    self._sync()
                case RoleChanged(role):
                    if role is Role.RESIGNED:
                        for lost in self._on_lost:
                            lost()
                case Committed(high_watermark):
                    for callback in self._on_committed:
                        callback(high_watermark)
                    if not self._leading.done():
                        self._leading.set_result(None)
                case _:
                    raise AssertionError(f"a quorum of one has no peers: {effect}")

    def _election_persisted(self, state: ElectionState) -> list[Effect]:
        return self.raft.election_persisted(state, self._now_ms())

    def _sync(self) -> None:
        if self._syncing:
            return  # the running fsync started before this write; its end starts the next one
        plan = self.log.log.pending_sync()
        if plan is None:
            return
        self._syncing = True

        def synced(end_offset: int) -> list[Effect]:
            self._syncing = False
            self.log.log.synced(plan)
            effects = self.raft.persisted(end_offset, self._generation, self._now_ms())
            if self.log.end_offset > end_offset and self.is_leader:
                effects.append(Persist(self.log.end_offset, self._generation))
            return effects

        self._in_thread(plan.run, synced, plan.offset)

    def _in_thread(self, work: Callable[[], None], then: Callable[[Any], list[Effect]], argument: Any) -> None:
        def done(future: asyncio.Future[None]) -> None:
            if future.cancelled():
                return
            error = future.exception()
            if error is None:
                try:
                    self._execute(then(argument))
                except OSError as failure:  # an effect could not be written, which nothing else would report
                    self._fail(failure)
            else:
                self._fail(error)

        self._loop.run_in_executor(None, work).add_done_callback(done)

    def _fail(self, error: BaseException) -> None:
        """Resign and report the failure. A failed fsync may have dropped pages, so a retry could falsely succeed."""
        log.critical(
            "the metadata log could not be synced (%s); this node stops: check the disk of metadata.log.dir, then restart it",
            error,
        )
        self.resign()
        if not self.failed.done():
            self.failed.set_exception(QuorumFailed(str(error)))
        if not self._leading.done():
            self._leading.set_exception(QuorumFailed(str(error)))

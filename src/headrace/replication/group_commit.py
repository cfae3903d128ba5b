"""The fsyncs of one partition: one at a time, in a thread. Whatever is appended while one runs shares the next.

This is how `flush.messages` and `flush.ms` cost one fsync for many producers, and the only place that runs a log's SyncPlan.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from headrace.base.errors import ErrorCode, KafkaError
from headrace.storage.log import Log
from headrace.storage.sync import SyncPlan, Unsynced

log = logging.getLogger(__name__)

Synced = asyncio.Future[KafkaError | None]  # what went wrong, if anything


class GroupCommit:
    __slots__ = ("_again", "_fail", "_log", "_loop", "_plan", "_running", "_synced", "closed")

    def __init__(
        self,
        log: Log,
        loop: asyncio.AbstractEventLoop,
        synced: Callable[[], None],
        fail: Callable[[OSError], KafkaError],
    ) -> None:
        """`synced` is told that the recovery point has moved, `fail` that an fsync failed."""
        self._log = log
        self._loop = loop
        self._synced = synced
        self._fail = fail
        self._plan: SyncPlan | None = None
        self._running: Synced | None = None
        self._again: Synced | None = None
        self.closed: KafkaError | None = None  # why, once nothing of this log is written any more

    @property
    def planned_end(self) -> int:
        """Everything below is on disk, or will be when the sync under way is through."""
        return self._log.recovery_point if self._plan is None else self._plan.offset

    @property
    def under_way(self) -> Synced | None:
        """The last sync that is asked for so far."""
        return self._again or self._running

    def sync(self) -> Synced:
        """Done when all that is in the log now is on disk: one that runs already began too early."""
        if self._running is None:
            return self._start(self._loop.create_future())
        if self._again is None:
            self._again = self._loop.create_future()
        return self._again

    def _start(self, done: Synced) -> Synced:
        plan = None if self.closed else self._log.pending_sync()
        if plan is None:
            if not done.done():
                done.set_result(self.closed)
        else:
            self._plan, self._running = plan, done
            self._loop.run_in_executor(None, plan.run).add_done_callback(self._finish)
        return done

    def _finish(self, work: asyncio.Future[None]) -> None:
        plan, done, again = self._plan, self._running, self._again
        assert plan is not None and done is not None
        self._plan = self._running = self._again = None
        outcome = self._outcome(plan, work)
        if not done.done():  # somebody who waited for it may have been cancelled
            done.set_result(outcome)
        if again is not None:
            self._start(again)

    def _outcome(self, plan: SyncPlan, work: asyncio.Future[None]) -> KafkaError | None:
        if self.closed is not None:
            if not work.cancelled():
                work.exception()  # looked at, for asyncio's sake: nobody minds what became of these files
            return self.closed
        error = work.exception()
        if error is None:
            self._log.synced(plan)
            self._synced()
            return None
        self._log.not_synced(plan)
        if isinstance(error, Unsynced):
            log.warning("%s is not on disk yet: %s; it is tried again", self._log.topic_partition, error)
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._log.topic_partition}: {error.strerror}")
        # An fsync that failed may have dropped the pages: what is on disk is unknown, so it is never tried again.
        if isinstance(error, OSError):
            return self._fail(error)
        log.error("%s: the sync ended with %r", self._log.topic_partition, error, exc_info=error)
        return self._fail(OSError(str(error)))

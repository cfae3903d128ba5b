"""The fsyncs of one partition: one at a time, in a thread. Everything appended while one runs shares the next.

With this, `flush.messages` and `flush.ms` cost one fsync for many producers. While a partition is in use, only this module runs
its log's SyncPlan.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.promise import Awaited, Promise
from headrace.storage.log import Log
from headrace.storage.sync import SyncPlan, Unsynced

log = logging.getLogger(__name__)

Synced = asyncio.Future[KafkaError | None]  # result: the error, or None if the sync succeeded
Acknowledgement = Awaited[KafkaError | None]  # of a sync, of followers or of both


class GroupCommit:
    __slots__ = ("_again", "_fail", "_log", "_loop", "_plan", "_running", "_synced", "closed")

    def __init__(
        self,
        log: Log,
        loop: asyncio.AbstractEventLoop,
        synced: Callable[[], None],
        fail: Callable[[OSError], KafkaError],
    ) -> None:
        """Call `synced` whenever the recovery point has moved and `fail` when an fsync has failed."""
        self._log = log
        self._loop = loop
        self._synced = synced
        self._fail = fail
        self._plan: SyncPlan | None = None
        self._running: Synced | None = None
        self._again: Synced | None = None
        self.closed: KafkaError | None = None  # the reason, once this log is no longer written

    @property
    def planned_end(self) -> int:
        """Return the offset below which everything is on disk, or will be when the running sync is done."""
        return self._log.recovery_point if self._plan is None else self._plan.offset

    @property
    def under_way(self) -> Synced | None:
        """Return the last sync that was requested and is not done yet."""
        return self._again or self._running

    def create_wait(self, timeout_s: float) -> Promise[KafkaError | None]:
        """Return a promise for something other than a sync, whose result is REQUEST_TIMED_OUT if nothing sets it in time."""
        done: Promise[KafkaError | None] = Promise()

        def time_out() -> None:
            if not done.done():
                done.set_result(KafkaError(ErrorCode.REQUEST_TIMED_OUT, f"{self._log.topic_partition}: {timeout_s} s"))

        timer = self._loop.call_later(timeout_s, time_out)
        done.add_done_callback(lambda _: timer.cancel())
        return done

    def sync(self) -> Synced:
        """Return a future that is done when everything now in the log is on disk.

        A sync that is already running began too early, so another one follows it.
        """
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
        if not done.done():  # cancelled if a task that awaited it was cancelled
            done.set_result(outcome)
        if again is not None:
            self._start(again)

    def _outcome(self, plan: SyncPlan, work: asyncio.Future[None]) -> KafkaError | None:
        if self.closed is not None:
            if not work.cancelled():
                work.exception()  # retrieved so that asyncio does not log it; the outcome no longer matters
            return self.closed
        error = work.exception()
        if error is None:
            self._log.synced(plan)
            self._synced()
            return None
        self._log.not_synced(plan)
        if isinstance(error, Unsynced):
            log.warning("%s could not be synced: %s; retrying", self._log.topic_partition, error)
            return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self._log.topic_partition}: {error.strerror}")
        # A failed fsync may have dropped the dirty pages: what is on disk is unknown, so it is never retried.
        if isinstance(error, OSError):
            return self._fail(error)
        log.error("%s: the sync ended with %r", self._log.topic_partition, error, exc_info=error)
        return self._fail(OSError(str(error)))

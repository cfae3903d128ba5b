"""A broker's periodic work: checkpoints, fsyncs, retention, expiry of producers, lagging followers, the event loop's lag.

Work over all partitions runs in slices; slow disk operations run in a thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any

from msgspec import Struct

from headrace.base.clock import Clock
from headrace.base.errors import CorruptData
from headrace.base.metrics import Metrics
from headrace.options.table import LONG_MAX
from headrace.replication.offset_checkpoints import ALL_CHECKPOINTS
from headrace.replication.partition import Partition
from headrace.replication.replicas import Replicas
from headrace.storage.checkpoints import HIGH_WATERMARK_CHECKPOINT, LOG_START_CHECKPOINT
from headrace.storage.files import is_transient
from headrace.storage.retention import enforce
from headrace.storage.segments.deleted_segments import DeletedSegments

log = logging.getLogger(__name__)

HOUSEKEEPING_S = 1.0
LAG_PROBE_S = 0.04  # an idle node wakes up for nothing else as often
# Fine-grained around the targets: 10 ms for one iteration of the loop, 50 ms for the worst in a thousand.
LAG_BUCKETS = (
    0.001, 0.002, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.045, 0.05, 0.06, 0.075, 0.1, 0.25, 0.5, 1.0, 5.0,
)  # fmt: skip
SLICE_S = 0.004
EVERY_S_MIN = 0.001
FLUSH_CHECK_S = 1.0  # for topics with flush.ms on a node without log.flush.scheduler.interval.ms


class Intervals(Struct, frozen=True):
    """Intervals of the periodic work in milliseconds, as the options define them."""

    high_watermark_ms: int
    recovery_point_ms: int
    log_start_ms: int
    retention_ms: int
    producer_expiry_ms: int
    flush_ms: int  # LONG_MAX if not set
    isr_ms: int  # between checks for followers that lag
    first_ms: int  # upper bound for the delay of a first round after a start, except for the expiry of producers


class _Turns:
    """Yields to the event loop at the end of each slice of work over all partitions."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._slice_end = loop.time() + SLICE_S

    async def take(self) -> None:
        if self._loop.time() > self._slice_end:
            await asyncio.sleep(0)
            self._slice_end = self._loop.time() + SLICE_S


class Background:
    def __init__(
        self,
        replicas: Replicas,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        metrics: Metrics,
        intervals: Intervals,
    ) -> None:
        self._replicas = replicas
        self._clock = clock
        self._loop = loop
        self._intervals = intervals
        self._lag = metrics.histogram(
            "headrace_loop_lag_seconds", "How late the event loop ran what was due.", LAG_BUCKETS
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._under_way: dict[asyncio.Task[None], None] = {}
        self._without_checkpoint: set[str] = set()
        # All checkpoint rounds use the same temporary files.
        self._writing = asyncio.Lock()

    def start(self) -> None:
        intervals = self._intervals
        flush_s = FLUSH_CHECK_S if intervals.flush_ms == LONG_MAX else intervals.flush_ms / 1000
        first_s = intervals.first_ms / 1000
        rounds: list[tuple[float, Callable[[], Coroutine[Any, Any, None]]]] = [
            (intervals.high_watermark_ms / 1000, lambda: self.checkpoint([HIGH_WATERMARK_CHECKPOINT])),
            (intervals.recovery_point_ms / 1000, lambda: self.checkpoint(ALL_CHECKPOINTS)),
            (intervals.log_start_ms / 1000, lambda: self.checkpoint([LOG_START_CHECKPOINT])),
            (intervals.retention_ms / 1000, lambda: self._for_each(self._delete_old)),
            (flush_s, self._flush_due),
            (intervals.isr_ms / 1000, lambda: self._for_each(self._review_isr)),
            (HOUSEKEEPING_S, self._do_housekeeping),
        ]
        for every_s, work in rounds:
            self._tasks.append(self._loop.create_task(self._repeat(every_s, min(first_s, every_s), work)))
        # The first expiry comes after a whole interval, as in Kafka: a producer with old timestamps has that long to retry a batch.
        expiry_s = intervals.producer_expiry_ms / 1000
        expire = self._repeat(expiry_s, expiry_s, lambda: self._for_each(self._expire_producers))
        self._tasks.append(self._loop.create_task(expire))
        self._tasks.append(self._loop.create_task(self._measure_lag()))

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def stop(self) -> None:
        """Stop and wait for running threads: writes in progress must be on disk BEFORE the logs are closed as clean."""
        self.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _repeat(self, every_s: float, wait_s: float, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        while True:
            await asyncio.sleep(max(wait_s, EVERY_S_MIN))
            wait_s = every_s
            # Cancelling this task must not cancel the work, because a running thread cannot be cancelled.
            task = self._loop.create_task(work())
            self._under_way[task] = None
            task.add_done_callback(lambda done: self._under_way.pop(done, None))
            await asyncio.shield(task)

    async def _for_each(
        self, work: Callable[[Partition, int], bool], partitions: Iterable[Partition] | None = None
    ) -> None:
        """Call `work` for each online partition, repeatedly as long as it returns True; by default for all partitions."""
        turns = _Turns(self._loop)
        now_ms = self._clock.now_ms()
        for partition in self._replicas.all() if partitions is None else partitions:
            while partition.offline is None and self._attempt(work, partition, now_ms):
                await turns.take()
            await turns.take()

    def _attempt(self, work: Callable[[Partition, int], bool], partition: Partition, now_ms: int) -> bool:
        """Run `work` on one partition: a permanent disk error fails its directory, a corrupt log is only logged."""
        try:
            return work(partition, now_ms)
        except OSError as error:
            self._handle_disk_error(partition, error)
        except CorruptData as error:
            log.error("%s: %s", partition.name, error)
        return False

    @staticmethod
    def _handle_disk_error(partition: Partition, error: OSError) -> None:
        if is_transient(error):
            log.warning("maintenance of %s failed: %s; trying again in the next round", partition.name, error)
        else:
            partition.fail(error)

    # --- checkpoints

    async def checkpoint(self, kinds: Sequence[str] = ALL_CHECKPOINTS) -> None:
        async with self._writing:
            failures = await self._loop.run_in_executor(None, self._replicas.checkpoint(kinds))
        for log_dir, error in failures:
            if not is_transient(error):
                self._replicas.fail_directory(log_dir, error)
            elif log_dir.path not in self._without_checkpoint:  # logged once, not in each round until there is space
                log.error(
                    "the checkpoint of %s could not be written: %s; a restart would have to check more of its logs",
                    log_dir.path,
                    error,
                )
        self._without_checkpoint = {log_dir.path for log_dir, _ in failures}

    # --- fsyncs and deletions

    async def _do_housekeeping(self) -> None:
        for partition in self._replicas.unsynced():
            if partition.commit is not None:
                await partition.commit.sync()
        self._replicas.retry_broken()
        now_ms = self._clock.now_ms()
        # This runs every second for all partitions, of which few have anything to do.
        for partition in [one for one in self._replicas.all() if len(one.log.deletion_queue)]:
            if partition.offline is None:
                for deleted in partition.log.deletion_queue.take(now_ms):
                    await self._remove(partition, deleted)

    async def _remove(self, partition: Partition, deleted: DeletedSegments) -> None:
        try:
            await self._loop.run_in_executor(None, deleted.remove)
        except OSError as error:
            self._handle_disk_error(partition, error)

    async def _flush_due(self) -> None:
        """Sync the logs that `flush.ms` requires to be synced; few topics set it."""
        timed = [one for one in self._replicas.all() if one.log.config.flush_ms < LONG_MAX]
        await self._for_each(self._flush_if_due, timed)

    @staticmethod
    def _flush_if_due(partition: Partition, now_ms: int) -> bool:
        if partition.log.flush_due(now_ms) and partition.commit is not None:
            partition.commit.sync()
        return False

    # --- retention and expiry

    @staticmethod
    def _delete_old(partition: Partition, now_ms: int) -> bool:
        if partition.log.is_being_cleaned:
            return False  # deleting segments would waste the cleaner's run; the next round tries again
        deleted = enforce(partition.log, partition.high_watermark, now_ms)
        if deleted is not None:
            log.info("%s", deleted)
        return deleted is not None

    @staticmethod
    def _expire_producers(partition: Partition, now_ms: int) -> bool:
        expiration_ms = partition.log.config.producer_id_expiration_ms
        partition.log.producers.expire(now_ms, expiration_ms)
        if now_ms - partition.term_began_ms >= expiration_ms:
            # A producer of an earlier leader would have expired by now: that its state is missing means nothing any more.
            partition.log.producers.must_start_at_zero = False
        return False

    # --- replication

    @staticmethod
    def _review_isr(partition: Partition, now_ms: int) -> bool:
        partition.review_isr(now_ms)
        return False

    async def _measure_lag(self) -> None:
        while True:
            due = self._loop.time() + LAG_PROBE_S
            await asyncio.sleep(LAG_PROBE_S)
            self._lag.observe(max(0.0, self._loop.time() - due))

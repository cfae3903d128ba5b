"""Compaction on a running node: the dirtiest log is cleaned step by step in a thread, and its segments are swapped here.

The log is chosen on the event loop. If it is deleted, moved or truncated while it is being cleaned, the run is abandoned. A log that
cannot be cleaned is logged once and never tried again by this process, as in Kafka.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping
from functools import partial
from random import Random
from typing import Any, TypeVar

from headrace.base.clock import Clock
from headrace.base.errors import CorruptData, HeadraceError
from headrace.base.ids import TopicPartition, Uuid
from headrace.base.metrics import Metrics
from headrace.options.table import Value
from headrace.replication.partition import Partition
from headrace.replication.replicas import Replicas
from headrace.storage.compaction.cleaner import CHUNK_BYTES_MIN, CleanerLimits, CleanerStats, Cleaning, Replacement
from headrace.storage.compaction.decisions import Cleanable, CleaningPlan, cleanable, plan_cleaning
from headrace.storage.compaction.swap import Swap
from headrace.storage.files import is_transient

log = logging.getLogger(__name__)

T = TypeVar("T")

STEP_BYTES = 4 << 20  # bytes per call in a thread: a few milliseconds, after which the run can be stopped
THROTTLED_STEP_S = 0.1
UNTHROTTLED = 1e15  # bytes per second, beyond any disk
SECRET_BYTES = 16
CHOICE_SLICE_S = 0.004


class Superseded(HeadraceError):
    """The log has changed since the run began, or the node is stopping."""


class LogCleaner:
    """Chooses logs and compacts them, several at a time.

    `options` returns the node's current options; `checkpoint` persists how far each log is clean.
    """

    def __init__(
        self,
        replicas: Replicas,
        options: Callable[[], Mapping[str, Value]],
        clock: Clock,
        random: Random,
        loop: asyncio.AbstractEventLoop,
        metrics: Metrics,
        checkpoint: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._replicas = replicas
        self._options = options
        self._clock = clock
        self._random = random
        self._loop = loop
        self._checkpoint = checkpoint
        self._stopping: asyncio.Future[None] = loop.create_future()
        self._woken: asyncio.Future[None] = loop.create_future()
        self._chooser: asyncio.Task[None] | None = None
        self._running: dict[asyncio.Task[None], TopicPartition] = {}
        self._not_before: dict[TopicPartition, float] = {}  # loop time before which an abandoned run is not retried
        self._uncleanable: dict[TopicPartition, Uuid] = {}
        self._io_free_at = 0.0
        self._last = CleanerStats()
        self._last_s = 0.0
        self._max_dirty_ratio = 0.0
        self._max_overdue_ms = 0
        self._last_choice_ms = clock.now_ms()
        self._export(metrics)

    def start(self) -> None:
        if self._options()["log.cleaner.enable"]:
            self._chooser = self._loop.create_task(self._run())
            self._chooser.add_done_callback(self._ended)
        else:
            log.warning("log.cleaner.enable=false: compacted topics grow without bound")

    def wake(self) -> None:
        """End the current backoff, because options have changed."""
        if not self._woken.done():
            self._woken.set_result(None)

    def cancel(self) -> None:
        for task in [*([self._chooser] if self._chooser else []), *self._running]:
            task.cancel()

    async def stop(self) -> None:
        """Stop and wait for running threads: a run is abandoned between two steps, but a swap of segments is completed."""
        if not self._stopping.done():
            self._stopping.set_result(None)
        if self._chooser is not None:
            self._chooser.cancel()
            await asyncio.gather(self._chooser, return_exceptions=True)
        await asyncio.gather(*self._running, return_exceptions=True)

    # --- choosing

    async def _run(self) -> None:
        while True:
            while len(self._running) < self._number("log.cleaner.threads"):
                chosen = await self._choose()
                if chosen is None:
                    break
                task = self._loop.create_task(self._clean(*chosen))
                self._running[task] = chosen[0].name
                task.add_done_callback(self._ended)
            backoff_s = max(self._number("log.cleaner.backoff.ms") / 1000, CHOICE_SLICE_S)
            self._woken = self._loop.create_future()
            await asyncio.wait([self._woken, *self._running], timeout=backoff_s, return_when=asyncio.FIRST_COMPLETED)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.critical(
                "the compaction of a log failed with %r; other logs are still compacted", error, exc_info=error
            )

    async def _choose(self) -> tuple[Partition, Cleanable] | None:
        """Return the log with the highest dirty ratio among those that are due, or None."""
        self._last_choice_ms = now_ms = self._clock.now_ms()
        best: tuple[Partition, Cleanable] | None = None
        ratio, overdue_ms = 0.0, 0
        slice_end = self._loop.time() + CHOICE_SLICE_S
        for partition in self._replicas.all():
            if self._may_be_cleaned(partition):
                found = self._find_cleanable(partition, now_ms)
                if found is not None:
                    ratio, overdue_ms = max(ratio, found.dirty_ratio), max(overdue_ms, found.overdue_ms)
                    if found.is_due(partition.log.config) and (best is None or found.dirty_ratio > best[1].dirty_ratio):
                        best = partition, found
            if self._loop.time() > slice_end:
                await asyncio.sleep(0)
                slice_end = self._loop.time() + CHOICE_SLICE_S
        self._max_dirty_ratio, self._max_overdue_ms = ratio, overdue_ms
        if best is None or not self._may_be_cleaned(best[0]):
            return None
        found = self._find_cleanable(best[0], now_ms)  # other tasks may have changed the log since
        return None if found is None or not found.is_due(best[0].log.config) else (best[0], found)

    def _may_be_cleaned(self, partition: Partition) -> bool:
        if not partition.log.config.is_compacted or partition.offline is not None or partition.log.is_being_cleaned:
            return False
        if self._uncleanable.get(partition.name) == partition.topic_id or not self._replicas.holds(partition):
            return False
        return self._not_before.get(partition.name, 0.0) <= self._loop.time()

    def _find_cleanable(self, partition: Partition, now_ms: int) -> Cleanable | None:
        try:
            return cleanable(partition.log, partition.last_stable_offset, now_ms)
        except OSError as error:
            self._handle_disk_error(partition, error)
        except CorruptData as error:
            self._mark_uncleanable(partition, error)
        return None

    # --- cleaning

    async def _clean(self, partition: Partition, found: Cleanable) -> None:
        began, size = self._loop.time(), partition.log.size
        plan = plan_cleaning(partition.log, found)
        cleaning = Cleaning(plan, self._limits(), self._random.randbytes(SECRET_BYTES), self._clock.now_ms())
        steps = cleaning.steps()
        plan.log.is_being_cleaned = True
        self._not_before[partition.name] = began + self._number("log.cleaner.backoff.ms") / 1000
        try:
            await self._take_steps(partition, plan, steps)
        except Superseded as reason:
            log.info("the compaction of %s was abandoned: %s", partition.name, reason)
        except OSError as error:
            if self._is_current(partition, plan):
                self._handle_disk_error(partition, error)
        except Exception as error:
            # If the log is no longer current, its files were closed while the thread used them: not worth reporting.
            if self._is_current(partition, plan):
                self._mark_uncleanable(partition, error)
        else:
            del self._not_before[partition.name]
            plan.log.cleaned_to = cleaning.cleaned_to
            self._last, self._last_s = cleaning.stats, self._loop.time() - began
            self._report(partition, cleaning.stats, size)
            await self._checkpoint()
            return
        finally:
            plan.log.is_being_cleaned = False
        await self._remove_files(partition, steps)

    async def _take_steps(self, partition: Partition, plan: CleaningPlan, steps: Iterator[int | Replacement]) -> None:
        while (step := await self._in_thread(partial(next, steps, None))) is not None:
            self._check(partition, plan)
            if isinstance(step, Replacement):
                await self._swap(partition, plan, step)
            else:
                await self._throttle(step)
                self._check(partition, plan)

    async def _swap(self, partition: Partition, plan: CleaningPlan, replacement: Replacement) -> None:
        swap = Swap(plan, replacement)
        replaced = False
        try:
            if not swap.begin():
                raise Superseded("some of its segments were deleted")
            await self._in_thread(swap.sync)
            self._check(partition, plan, stops=False)
            if not swap.replace(self._clock.now_ms()):
                raise Superseded("the log was truncated")
            replaced = True
            await self._in_thread(swap.sync)
            if self._is_current(partition, plan):
                swap.finish()
        except (OSError, Superseded):
            if not replaced and partition.log is plan.log and self._replicas.holds(partition):
                plan.log.discard_swap()
            raise

    async def _throttle(self, size: int) -> None:
        """Wait as long as the I/O limit requires; all runs share the limit."""
        rate = self._rate()
        if rate >= UNTHROTTLED:
            return
        now = self._loop.time()
        self._io_free_at = max(self._io_free_at, now) + size / rate
        await asyncio.wait([self._stopping], timeout=self._io_free_at - now)

    async def _remove_files(self, partition: Partition, steps: Iterator[int | Replacement]) -> None:
        """Remove the files that an abandoned run has written."""
        try:
            await self._in_thread(steps.close)  # type: ignore[attr-defined]
        except OSError as error:
            log.warning(
                "files of an abandoned compaction of %s could not be removed: %s; the next start removes them",
                partition.name,
                error,
            )

    def _check(self, partition: Partition, plan: CleaningPlan, *, stops: bool = True) -> None:
        if stops and self._stopping.done():
            raise Superseded("this node is stopping")
        if not self._is_current(partition, plan):
            raise Superseded("the log was deleted, moved or truncated")

    def _is_current(self, partition: Partition, plan: CleaningPlan) -> bool:
        return (
            self._replicas.holds(partition)
            and partition.offline is None
            and partition.log is plan.log
            and plan.log.generation == plan.generation
        )

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(None, work)

    # --- failures

    def _handle_disk_error(self, partition: Partition, error: OSError) -> None:
        if is_transient(error):
            log.warning("%s could not be compacted: %s; trying again later", partition.name, error)
        else:
            partition.fail(error)

    def _mark_uncleanable(self, partition: Partition, error: Exception) -> None:
        self._uncleanable[partition.name] = partition.topic_id
        traceback = None if isinstance(error, CorruptData) else error
        log.error(
            "%s cannot be compacted, and is not tried again before a restart: %s",
            partition.name,
            error,
            exc_info=traceback,
        )

    # --- options and metrics

    def _number(self, name: str) -> int:
        value = self._options()[name]
        assert isinstance(value, int), f"{name} is {value!r}"
        return value

    def _rate(self) -> float:
        rate = self._options()["log.cleaner.io.max.bytes.per.second"]
        assert isinstance(rate, int | float)
        return max(float(rate), 1.0)

    def _limits(self) -> CleanerLimits:
        threads = max(self._number("log.cleaner.threads"), 1)
        load = self._options()["log.cleaner.io.buffer.load.factor"]
        assert isinstance(load, int | float)
        chunk = max(self._number("log.cleaner.io.buffer.size") // threads // 2, CHUNK_BYTES_MIN)
        return CleanerLimits(
            map_bytes=self._number("log.cleaner.dedupe.buffer.size") // threads,
            load_factor=load,
            chunk_bytes=chunk,
            step_bytes=max(chunk, min(STEP_BYTES, int(self._rate() * THROTTLED_STEP_S))),
        )

    def _report(self, partition: Partition, stats: CleanerStats, size: int) -> None:
        seconds = max(self._last_s, 1e-9)
        log.info(
            "%s was compacted up to offset %d: %d of %d records remain, %d bytes became %d, %.1f s, %.1f MB/s, %d keys",
            partition.name,
            partition.log.cleaned_to,
            stats.records_kept,
            stats.records_read,
            stats.bytes_read,
            stats.bytes_written,
            self._last_s,
            (stats.bytes_mapped + stats.bytes_read + stats.bytes_written) / seconds / 1e6,
            stats.keys,
        )

    def _uncleanable_in(self, path: str) -> list[Partition]:
        return [
            partition
            for partition in self._replicas.all()
            if self._uncleanable.get(partition.name) == partition.topic_id
            and partition.log.directory.rpartition("/")[0] == path
        ]

    def _export(self, metrics: Metrics) -> None:
        of_cleaner, of_choice = "kafka_log_logcleaner_", "kafka_log_logcleanermanager_"
        for name, meaning, read in (
            (
                f"{of_choice}max_dirty_percent",
                "Share of the dirtiest compacted log that is not clean.",
                lambda: 100 * self._max_dirty_ratio,
            ),
            (
                f"{of_choice}time_since_last_run_ms",
                "Time since the cleaner last looked for a log to compact.",
                lambda: float(self._clock.now_ms() - self._last_choice_ms),
            ),
            (
                f"{of_cleaner}cleaner_recopy_percent",
                "Share of the bytes read by the last compaction that it wrote back.",
                lambda: 100 * self._last.bytes_written / max(self._last.bytes_read, 1),
            ),
            (f"{of_cleaner}max_clean_time_secs", "How long the last compaction took.", lambda: self._last_s),
            (
                f"{of_cleaner}max_buffer_utilization_percent",
                "How full the memory for keys was in the last compaction.",
                lambda: 100 * self._last.map_share,
            ),
            (
                f"{of_cleaner}max_compaction_delay_secs",
                "How long a log waits beyond max.compaction.lag.ms.",
                lambda: self._max_overdue_ms / 1000,
            ),
        ):
            metrics.gauge(name, meaning, read)
        for log_dir in self._replicas.directories.all():
            metrics.gauge(
                f"{of_choice}uncleanable_partitions_count",
                "Partitions that cannot be compacted.",
                lambda path=log_dir.path: float(len(self._uncleanable_in(path))),  # type: ignore[misc]
                logDirectory=log_dir.path,
            )
            metrics.gauge(
                f"{of_choice}uncleanable_bytes",
                "Bytes of these partitions that are not compacted.",
                lambda path=log_dir.path: float(  # type: ignore[misc]
                    sum(
                        one.size
                        for partition in self._uncleanable_in(path)
                        for one in partition.log.segments
                        if one.next_offset > partition.log.cleaned_to
                    )
                ),
                logDirectory=log_dir.path,
            )

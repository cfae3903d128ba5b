"""What a broker does beside answering: checkpoints, syncing of finished segments, and an eye on the event loop's lag."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from headrace.base.metrics import Metrics
from headrace.replication.partition import Partition
from headrace.replication.replicas import Replicas

log = logging.getLogger(__name__)

SYNC_CHECK_S = 1.0
LAG_PROBE_S = 0.01
# Fine around what we promise: 10 ms for one turn, 50 ms in the worst of a thousand.
LAG_BUCKETS = (
    0.001, 0.002, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.045, 0.05, 0.06, 0.075, 0.1, 0.25, 0.5, 1.0, 5.0,
)  # fmt: skip


class Background:
    def __init__(
        self,
        replicas: Replicas,
        loop: asyncio.AbstractEventLoop,
        metrics: Metrics,
        *,
        high_watermark_s: float,
        recovery_point_s: float,
    ) -> None:
        self._replicas = replicas
        self._loop = loop
        self._high_watermark_s = high_watermark_s
        self._recovery_point_s = recovery_point_s
        self._lag = metrics.histogram(
            "headrace_loop_lag_seconds", "How late the event loop ran what was due.", LAG_BUCKETS
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._under_way: dict[asyncio.Task[None], None] = {}
        # Both rounds of checkpoints write the high watermarks, through the same temporary file.
        self._writing = asyncio.Lock()

    def start(self) -> None:
        for work in (self._checkpoint_high_watermarks, self._checkpoint, self._sync_finished, self._measure_lag):
            self._tasks.append(self._loop.create_task(work()))

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def stop(self) -> None:
        """Returns when no thread is at work any more: what a sync has taken on must be on disk BEFORE the logs are closed as clean."""
        self.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*self._under_way, return_exceptions=True)

    async def _to_the_end(self, work: Coroutine[Any, Any, None]) -> None:
        """Whoever waits may be cancelled, the work may not: a thread cannot be called back."""
        task = self._loop.create_task(work)
        self._under_way[task] = None
        task.add_done_callback(lambda done: self._under_way.pop(done, None))
        await asyncio.shield(task)

    async def _checkpoint_high_watermarks(self) -> None:
        while True:
            await asyncio.sleep(self._high_watermark_s)
            await self._to_the_end(self._write(self._replicas.checkpoint_high_watermarks))

    async def _checkpoint(self) -> None:
        while True:
            await asyncio.sleep(self._recovery_point_s)
            await self._to_the_end(self._write(self._replicas.checkpoint))

    async def _write(self, checkpoint: Callable[[], Callable[[], None]]) -> None:
        try:
            async with self._writing:
                await self._loop.run_in_executor(None, checkpoint())
        except OSError as error:
            log.error("checkpoints could not be written: %s; a restart will have to check more of the logs", error)

    async def _sync_finished(self) -> None:
        while True:
            await asyncio.sleep(SYNC_CHECK_S)
            for partition in self._replicas.rolled():
                await self._to_the_end(self._sync(partition))

    async def _sync(self, partition: Partition) -> None:
        plan = partition.log.pending_sync()
        if plan is None:
            return
        try:
            await self._loop.run_in_executor(None, plan.run)
        except OSError as error:
            # An fsync that failed may have dropped the pages: what is on disk is unknown, so it is never tried again.
            log.error("%s", partition.fail(error).message)
        else:
            partition.log.synced(plan)

    async def _measure_lag(self) -> None:
        while True:
            due = self._loop.time() + LAG_PROBE_S
            await asyncio.sleep(LAG_PROBE_S)
            self._lag.observe(max(0.0, self._loop.time() - due))

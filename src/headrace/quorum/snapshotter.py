"""Takes snapshots of the committed metadata and deletes old ones, with the log that only they need.

A snapshot is due after a number of bytes or a time since the last one; retention is by bytes and time too.
Encoding yields to the event loop regularly; the disk is written in a thread. If a snapshot fails, the log that it would have replaced
is kept, and the next attempt is made when the next snapshot is due.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct

from headrace.base.clock import Clock
from headrace.metadata.records import METADATA_VERSION_MAX
from headrace.metadata.snapshot import snapshot_records
from headrace.metadata.state import METADATA_VERSION, ClusterState
from headrace.quorum.driver import QuorumDriver
from headrace.quorum.snapshots import PartFile, SnapshotFiles, SnapshotId, snapshot_batches, snapshot_timestamp
from headrace.storage.retention import enforce

log = logging.getLogger(__name__)

T = TypeVar("T")

SLICE_S = 0.004  # time after which encoding yields to the event loop
WRITE_BYTES = 1 << 20  # bytes written in one call of a thread
CLEAN_INTERVAL_MS = 60_000


class SnapshotPolicy(Struct, frozen=True):
    """Kafka's options for snapshots.

    metadata.log.max.record.bytes.between.snapshots, metadata.log.max.snapshot.interval.ms (0: never by time),
    metadata.max.retention.bytes and metadata.max.retention.ms (negative: no limit).
    """

    bytes_between: int
    interval_ms: int
    retention_bytes: int
    retention_ms: int


class Snapshotter:
    """Takes snapshots and cleans up; call `tick` regularly.

    `state` returns a copy of the committed state that never changes, and `applied_end` where in the log that state ends.
    """

    def __init__(
        self,
        driver: QuorumDriver,
        files: SnapshotFiles,
        state: Callable[[], ClusterState],
        applied_end: Callable[[], int],
        policy: SnapshotPolicy,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._driver = driver
        self._files = files
        self._state = state
        self._applied_end = applied_end
        self._policy = policy
        self._clock = clock
        self._loop = loop
        self._last_ms = clock.now_ms()
        self._cleaned_ms = clock.now_ms()
        self._bytes_at_last = driver.log.bytes_appended - self._bytes_since_newest()
        self._work: asyncio.Task[None] | None = None
        self._stopping = False

    def _bytes_since_newest(self) -> int:
        newest = self._files.newest
        return self._driver.log.size_from(max(newest.end_offset if newest else 0, self._driver.log.log.log_start))

    def tick(self) -> None:
        """Start a snapshot or a cleanup if one is due; cheap enough to be called often."""
        if self._work is not None or self._stopping:
            return
        now_ms = self._clock.now_ms()
        newest = self._files.newest
        if self._applied_end() > (newest.end_offset if newest is not None else 0) and (
            self._driver.log.bytes_appended - self._bytes_at_last >= self._policy.bytes_between
            or 0 < self._policy.interval_ms <= now_ms - self._last_ms
        ):
            self._start(self._take())
        elif now_ms - self._cleaned_ms >= CLEAN_INTERVAL_MS:
            self._start(self._clean())

    async def stop(self) -> None:
        """Abandon an incomplete snapshot, and return when no thread is working any more."""
        self._stopping = True
        if self._work is not None:
            await asyncio.gather(self._work, return_exceptions=True)

    def cancel(self) -> None:
        if self._work is not None:
            self._work.cancel()

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        self._work = self._loop.create_task(work)
        self._work.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._work = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a snapshot of the metadata could not be taken or cleaned up: %s", error, exc_info=error)

    async def _take(self) -> None:
        # No suspension before `state` is copied: offset and state must match.
        self._last_ms, self._bytes_at_last = self._clock.now_ms(), self._driver.log.bytes_appended
        end = self._applied_end()
        snapshot = SnapshotId(end, self._driver.log.log.epochs.epoch_for(end - 1))
        state = self._state()
        batches = snapshot_batches(
            snapshot_records(state),
            snapshot.epoch,
            self._last_ms,
            last_timestamp=self._driver.log.timestamp_of(end - 1),
            control=self._driver.voter_records(end).control(),
            metadata_version=state.features.get(METADATA_VERSION) or METADATA_VERSION_MAX,
        )
        part = await self._in_thread(partial(self._files.begin, snapshot))
        try:
            pending, size, slice_end = list[bytes](), 0, self._loop.time() + SLICE_S
            for batch in batches:
                pending.append(batch)
                size += len(batch)
                if size >= WRITE_BYTES:
                    await self._in_thread(partial(part.append, b"".join(pending)))
                    pending, size = [], 0
                if self._loop.time() > slice_end:
                    await asyncio.sleep(0)
                    slice_end = self._loop.time() + SLICE_S
                if self._stopping:
                    part.abandon()
                    return
            await self._in_thread(partial(_finish, part, b"".join(pending)))
        except Exception:
            part.abandon()
            raise
        self._files.written(snapshot)
        log.info("snapshot of the metadata up to offset %d", end)
        await self._clean()

    async def _clean(self) -> None:
        """Delete the oldest snapshots while there is more than may be kept, and the log before the oldest one left."""
        self._cleaned_ms = self._clock.now_ms()
        ids = list(self._files.ids)
        metadata = self._driver.log.log
        sizes: list[int] = await self._in_thread(partial(list, map(self._files.size, ids)))
        total = sum(sizes) + sum(segment.size for segment in metadata.segments)
        keep = 0
        for index in range(len(ids) - 1):
            too_much = 0 <= self._policy.retention_bytes < total
            if not too_much and not await self._in_thread(partial(self._too_old, ids[index])):
                break
            total -= sizes[index]
            keep = index + 1
        if keep:
            metadata.advance_log_start(ids[keep].end_offset)
            await self._in_thread(self._files.forget(ids[keep]))
        while enforce(metadata, self._driver.high_watermark, self._cleaned_ms) is not None:
            await asyncio.sleep(0)
        for deleted in metadata.deletion_queue.take(self._cleaned_ms):
            await self._in_thread(deleted.remove)

    def _too_old(self, snapshot: SnapshotId) -> bool:
        if self._policy.retention_ms < 0:
            return False
        return self._cleaned_ms - snapshot_timestamp(self._files, snapshot) > self._policy.retention_ms

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await self._loop.run_in_executor(None, work)


def _finish(part: PartFile, rest: bytes) -> None:
    part.append(rest)
    part.finish()

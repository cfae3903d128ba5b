"""Reads the offset range of one Spark task, fetching and decoding in the background while Spark consumes the rows."""

from __future__ import annotations

import asyncio
import logging
import queue
from collections.abc import Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

from headrace.base.ids import TopicPartition, Uuid, uuid_from_text
from headrace.client.consumer.options import ISOLATION
from headrace.client.consumer.range_reader import RANGE_FETCH_BYTES, OffsetGone, RangeOptions, TopicChanged, read_range
from headrace.pipelines.background import Background, background
from headrace.pipelines.source.options import SourceOptions
from headrace.pipelines.source.planning import Loss
from headrace.pipelines.source.tracking import report_losses

if TYPE_CHECKING:
    import pyarrow as pa

BATCHES_AHEAD = 2

_LOG = logging.getLogger("headrace.spark")


class TaskRange(Struct, frozen=True):
    topic: str
    partition: int
    start: int
    end: int
    topic_id: str | None = None

    @property
    def id(self) -> Uuid | None:
        return None if self.topic_id is None else uuid_from_text(self.topic_id)


def read_task(task: TaskRange, options: SourceOptions, columns: tuple[str, ...], unit: str) -> Iterator[pa.RecordBatch]:
    """Yield record batches with these columns.

    If records are gone, raise DataLoss if options.fail_on_data_loss is true, else yield what is left.
    """
    position = task.start
    while position < task.end:
        try:
            yield from _Pump(background(), task, position, options, columns, unit)
            return
        except OffsetGone as gone:
            partition, earliest = gone.partition, gone.earliest
            if earliest <= gone.requested:
                what = f"{partition}: offset {gone.requested} was to be read, but the log now ends at {gone.latest}"
                report_losses([Loss(what)], options.fail_on_data_loss)
                return
            what = f"{partition}: offset {gone.requested} was to be read, but the log now starts at {earliest}"
            report_losses([Loss(what, partition, min(earliest, task.end) - gone.requested)], options.fail_on_data_loss)
            position = earliest
        except TopicChanged as changed:
            report_losses([Loss(changed.message)], options.fail_on_data_loss)
            return


class _Pump:
    """Iterates, in the calling thread, over batches that a coroutine produces on the background loop; BATCHES_AHEAD limits the queue."""

    def __init__(
        self,
        behind: Background,
        task: TaskRange,
        start: int,
        options: SourceOptions,
        columns: tuple[str, ...],
        unit: str,
    ) -> None:
        self._behind = behind
        self._range = task
        self._start = start
        self._options = options
        self._columns = columns
        self._unit = unit
        self._batches: queue.SimpleQueue[pa.RecordBatch | BaseException | None] = queue.SimpleQueue()
        self._buffer_space = asyncio.Semaphore(BATCHES_AHEAD)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        work = self._behind.start(self._pump())
        try:
            while True:
                found = self._batches.get()
                if found is None:
                    return
                if isinstance(found, BaseException):
                    raise found
                self._behind.loop.call_soon_threadsafe(self._buffer_space.release)
                yield found
        finally:
            work.cancel()

    async def _pump(self) -> None:
        try:
            task, options = self._range, self._options
            cluster = await self._behind.cluster(options.client)
            range_options = RangeOptions(
                columns=self._columns,
                timestamp_unit=self._unit,
                isolation=ISOLATION[str(options.client["isolation.level"])],
                max_bytes=_fetch_bytes(options),
                topic_id=task.id,
                check_crcs=bool(options.client["check.crcs"]),
                stall_s_max=options.stall_s_max,
            )
            partition = TopicPartition(task.topic, task.partition)
            async for batch in read_range(cluster, partition, self._start, task.end, range_options):
                await self._buffer_space.acquire()
                self._batches.put(batch)
            self._batches.put(None)
        except BaseException as error:
            self._batches.put(error)
            raise


def _fetch_bytes(options: SourceOptions) -> int:
    """Return the configured fetch size, by default more than Kafka's, which suits consumers of many partitions."""
    limits = [
        value
        for name in ("max.partition.fetch.bytes", "fetch.max.bytes")
        if name in options.given and isinstance(value := options.client[name], int)
    ]
    return max(1, min(limits, default=RANGE_FETCH_BYTES))

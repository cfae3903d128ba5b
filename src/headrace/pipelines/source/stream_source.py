"""Streaming reads of format("headrace"). Spark requests offsets in one long-lived process per query and reads in its workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from headrace.pipelines.background import background
from headrace.pipelines.failures import plain_errors
from headrace.pipelines.source.batch_source import row_reader, tasks_of
from headrace.pipelines.source.brokers import Brokers
from headrace.pipelines.source.offsets import JsonOffset, read_offset
from headrace.pipelines.source.options import Mode
from headrace.pipelines.source.planning import Range, split_ranges
from headrace.pipelines.source.tracking import Tracker

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._rows = row_reader(options, schema, Mode.STREAM)
        self._tracker: Tracker | None = None
        self._is_idle = False

    def __getstate__(self) -> dict[str, Any]:
        """Omit what the driver has open; a task does not need it."""
        return {"_rows": self._rows, "_tracker": None, "_is_idle": False}

    def initialOffset(self) -> JsonOffset:
        with plain_errors():
            return background().do(self._initial())

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return one of the limits; Spark cannot combine two, so `latestOffset` reads them from the options."""
        options = self._rows.options
        if options.max_offsets is not None:
            return ReadMaxRows(options.max_offsets)
        if options.max_bytes is not None:
            return ReadMaxBytes(options.max_bytes)
        if options.min_offsets is not None:
            return ReadMinRows(options.min_offsets)
        return ReadAllAvailable()

    def latestOffset(self, start: JsonOffset, limit: ReadLimit) -> JsonOffset:
        with plain_errors():
            # Wait only if the query has nothing else to do. If it has several sources, an idle one must not delay the others: `commit`
            # is called on all sources, whichever of them started the batch.
            wait_ms = self._rows.options.idle_wait_ms if self._is_idle else 0
            found = background().do(self._next(start, not isinstance(limit, ReadAllAvailable), wait_ms))
            self._is_idle = found is None
            return start if found is None else found

    def reportLatestOffset(self) -> JsonOffset | None:
        latest = None if self._tracker is None else self._tracker.latest
        return None if latest is None or not latest.offsets else latest.to_json()

    def prepareForTriggerAvailableNow(self) -> None:
        with plain_errors():
            background().do(self._freeze())

    def partitions(self, start: JsonOffset, end: JsonOffset) -> Sequence[InputPartition]:
        with plain_errors():
            options = self._rows.options
            ranges = split_ranges(
                background().do(self._ranges(start, end)), options.min_partitions, options.max_records
            )
            return tasks_of(ranges, read_offset(end).ids)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.read(partition)

    def commit(self, end: JsonOffset) -> None:
        """Note that a batch is done; a listener commits to groups, because this is not called for the last batch of a query."""
        self._is_idle = False

    def stop(self) -> None:
        self._tracker = None

    async def _tracked(self) -> Tracker:
        if self._tracker is None:
            self._tracker = Tracker(self._rows.options, await Brokers.open(self._rows.options))
        return self._tracker

    async def _initial(self) -> JsonOffset:
        return (await (await self._tracked()).initial()).to_json()

    async def _freeze(self) -> None:
        await (await self._tracked()).freeze()

    async def _next(self, start: JsonOffset, limited: bool, wait_ms: int) -> JsonOffset | None:
        found = await (await self._tracked()).next(read_offset(start), limited=limited, wait_ms=wait_ms)
        return None if found is None else found.to_json()

    async def _ranges(self, start: JsonOffset, end: JsonOffset) -> list[Range]:
        return await (await self._tracked()).ranges(read_offset(start), read_offset(end))

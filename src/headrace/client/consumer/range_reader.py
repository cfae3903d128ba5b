"""A bounded read: the records of one partition from one offset to before another, as Arrow record batches.

The next fetch is in flight while the caller works. A leader that moves or fails costs time, never rows: complete
batches are returned once, and the next fetch begins after them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import ZERO_UUID, TopicPartition, Uuid, uuid_text
from headrace.client.consumer.decoding import ROWS_AT_ONCE, Constants, ConsumerRecord, FetchedBatches, Shape
from headrace.client.consumer.fetching import (
    READ_UNCOMMITTED,
    TRANSIENT,
    FetchedPartition,
    FetchSettings,
    FetchTarget,
    fetch_from,
)
from headrace.client.consumer.list_offsets import EARLIEST, LATEST, list_offset
from headrace.client.retry import UNREACHABLE, Backoff, Retry, RetryPolicy
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.frames import UnexpectedResponse

if TYPE_CHECKING:
    import pyarrow as pa

RANGE_FETCH_BYTES = 8 << 20  # about 64 Ki rows of 100 bytes
FETCH_BYTES_MIN = 64 << 10
STALL_S_MAX = 60.0  # longest time without a new record, for any reason
# Seconds for which our metadata, and a broker's, may still have the id of a deleted topic with the same name.
STALE_METADATA_S_MAX = 1.0
_POLICY = RetryPolicy(codes=TRANSIENT)
_STALE_POLICY = RetryPolicy(Backoff(0.1, 0.1), codes=TRANSIENT)
SPARE = 1.2  # factor on the estimated size of the rest of the range, as records differ in size


class OffsetGone(KafkaError):
    """The log does not hold the offset: it now begins later (retention) or ends earlier (records were lost)."""

    def __init__(self, partition: TopicPartition, requested: int, earliest: int, latest: int) -> None:
        super().__init__(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{partition}: offset {requested} does not exist; the partition holds {earliest} to {latest}",
        )
        self.partition = partition
        self.requested = requested
        self.earliest = earliest
        self.latest = latest


class RangeOptions(NamedTuple):
    """What is read of each record, and the limits of reading."""

    columns: Sequence[str] = Shape().columns
    timestamp_unit: str = "ms"
    isolation: int = READ_UNCOMMITTED
    max_bytes: int = RANGE_FETCH_BYTES  # of one fetch
    rows_max: int = ROWS_AT_ONCE  # of one record batch
    topic_id: Uuid | None = None  # None: the topic that has the name when reading starts
    check_crcs: bool = True
    stall_s_max: float = STALL_S_MAX


DEFAULT_OPTIONS = RangeOptions()


async def read_range(
    cluster: Cluster, partition: TopicPartition, start: int, end: int, options: RangeOptions = DEFAULT_OPTIONS
) -> AsyncIterator[pa.RecordBatch]:
    """Yield the records from offset `start` to before `end`; no record batch is empty.

    Raise OffsetGone if the log does not hold these offsets (any more), TopicChanged if the topic is not, or no longer,
    the one with `options.topic_id`, and KafkaError CORRUPT_MESSAGE for a damaged batch, after yielding all before it.
    """
    shape = Shape(tuple(options.columns), options.timestamp_unit).check()
    if start >= end:
        return
    source = _Range(cluster, partition, end, options)
    constants = Constants(partition)
    fetch = asyncio.ensure_future(source.fetch(start))
    try:
        while True:
            fetched = await fetch
            batches = FetchedBatches(fetched, end_offset=end, check_crcs=options.check_crcs, constants=constants)
            source.learn(batches)
            if batches.next_offset < end:
                fetch = asyncio.ensure_future(source.fetch(batches.next_offset))
            while not batches.is_spent:
                # In another thread, which rarely needs the interpreter's lock: the next fetch arrives meanwhile.
                rows = await asyncio.to_thread(batches.take_batch, shape, options.rows_max)
                if rows is not None:
                    yield rows
            if batches.next_offset >= end:
                return
    finally:
        fetch.cancel()
        with suppress(asyncio.CancelledError, Exception):
            await fetch


class ReadOnce(NamedTuple):
    records: list[ConsumerRecord]
    next_offset: int
    high_watermark: int


async def read_once(
    cluster: Cluster,
    partition: TopicPartition,
    offset: int,
    *,
    wait_ms: int = 500,
    max_bytes: int = 1 << 20,
    isolation: int = READ_UNCOMMITTED,
) -> ReadOnce:
    """Return the result of one fetch; no records if none arrived within `wait_ms`. Raise the broker's KafkaError."""
    settings = FetchSettings(
        max_wait_ms=wait_ms, max_bytes=max_bytes, partition_max_bytes=max_bytes, isolation=isolation
    )
    fetched = await _fetch_one(cluster, FetchTarget(partition, offset), settings)
    if fetched.error in TRANSIENT:
        cluster.forget_leader(partition)  # the known leader was outdated: try once more with fresh metadata
        fetched = await _fetch_one(cluster, FetchTarget(partition, offset), settings)
    if fetched.error is not ErrorCode.NONE:
        raise KafkaError(fetched.error, f"{partition} at offset {offset}")
    batches = FetchedBatches(fetched)
    records: list[ConsumerRecord] = []
    while more := batches.take_records(ROWS_AT_ONCE):
        records += more
    return ReadOnce(records, batches.next_offset, fetched.high_watermark)


async def _fetch_one(cluster: Cluster, target: FetchTarget, settings: FetchSettings) -> FetchedPartition:
    leader = await cluster.leader_id(target.partition)
    for fetched in await fetch_from(cluster, leader, [target], settings):
        return fetched
    raise UnexpectedResponse(f"the response of broker {leader} does not contain {target.partition}")


class _Range:
    def __init__(self, cluster: Cluster, partition: TopicPartition, end: int, options: RangeOptions) -> None:
        self._cluster = cluster
        self._partition = partition
        self._end = end
        self._settings = FetchSettings(isolation=options.isolation)
        self._max_bytes = options.max_bytes
        self._topic_id = options.topic_id
        self._stall_s_max = options.stall_s_max
        self._bytes_per_offset: float | None = None

    def learn(self, batches: FetchedBatches) -> None:
        self._bytes_per_offset = batches.size / max(1, batches.next_offset - batches.position)

    async def fetch(self, offset: int) -> FetchedPartition:
        """Return a fetch with data at `offset`, retrying until the stall limit, or raise the last error."""
        retry = Retry(_POLICY, self._stall_s_max)
        stale = Retry(_STALE_POLICY, min(self._stall_s_max, STALE_METADATA_S_MAX))
        while True:
            try:
                fetched = await self._fetch_once(offset)
                if len(fetched.data):
                    return fetched
                if retry.left_s == 0:  # a fetch without data has already waited at the broker, so there is no pause
                    raise OffsetGone(self._partition, offset, fetched.log_start_offset, fetched.end_offset)
            except TopicChanged as error:
                self._cluster.forget_leader(self._partition)
                await stale.pause(error)
            except (*UNREACHABLE, KafkaError) as error:
                self._cluster.forget_leader(self._partition)
                await retry.pause(error)

    async def _fetch_once(self, offset: int) -> FetchedPartition:
        await self._cluster.leader_id(self._partition)
        self._check_topic()
        size = self._max_bytes
        if self._bytes_per_offset is not None:
            size = min(size, max(FETCH_BYTES_MIN, int((self._end - offset) * self._bytes_per_offset * SPARE)))
        settings = self._settings._replace(max_bytes=size, partition_max_bytes=size)
        fetched = await _fetch_one(self._cluster, FetchTarget(self._partition, offset), settings)
        if fetched.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            earliest = await list_offset(self._cluster, self._partition, EARLIEST)
            latest = await list_offset(self._cluster, self._partition, LATEST, isolation=self._settings.isolation)
            raise OffsetGone(self._partition, offset, earliest, latest)
        if fetched.error is not ErrorCode.NONE:
            raise KafkaError(fetched.error, f"{self._partition} at offset {offset}")
        return fetched

    def _check_topic(self) -> None:
        now = self._cluster.topic_id(self._partition.topic)
        if now == ZERO_UUID:
            return  # the cluster has no topic ids
        if self._topic_id is None:
            self._topic_id = now
        if self._topic_id != now:
            raise TopicChanged(self._partition.topic, self._topic_id, now)


class TopicChanged(KafkaError):
    """The topic was deleted, and another one was created with its name."""

    def __init__(self, topic: str, before: Uuid, now: Uuid) -> None:
        super().__init__(
            ErrorCode.INCONSISTENT_TOPIC_ID,
            f"topic {topic} was recreated: its id was {uuid_text(before)} and is {uuid_text(now)}",
        )
        self.before = before
        self.now = now

"""A bounded read: the records of one partition from one offset to before another, as Arrow record batches.

The next fetch is under way while the caller works. A leader that moves or dies costs time, never rows: what was fetched whole is given
once, and the next fetch begins after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import ZERO_UUID, TopicPartition, Uuid, uuid_text
from headrace.client.cluster import RETRY_BACKOFF_S, Cluster
from headrace.client.connection import Disconnected, NoAnswer
from headrace.client.decoding import ROWS_AT_ONCE, Constants, ConsumerRecord, FetchedBatches, Shape
from headrace.client.fetching import (
    PASSING,
    READ_UNCOMMITTED,
    FetchedPartition,
    FetchSettings,
    FetchTarget,
    fetch_from,
)
from headrace.client.frames import UnexpectedAnswer
from headrace.client.list_offsets import EARLIEST, LATEST, list_offset

if TYPE_CHECKING:
    import pyarrow as pa

RANGE_FETCH_BYTES = 8 << 20  # some 64 Ki rows of 100 bytes
FETCH_BYTES_MIN = 64 << 10
STALL_S_MAX = 60.0  # without a new record, whatever the reason
OLD_NEWS_S_MAX = (
    1.0  # so long a topic's id may be the one of its predecessor: in what we knew, and in what a broker knows
)
SPARE = 1.2  # how much more than the rest of the range seems to need is asked for: records are not all of one size


class OffsetGone(KafkaError):
    """The log does not hold what is to be read: it begins later by now (retention), or ends earlier (records were lost)."""

    def __init__(self, partition: TopicPartition, wanted: int, earliest: int, latest: int) -> None:
        super().__init__(
            ErrorCode.OFFSET_OUT_OF_RANGE,
            f"{partition}: offset {wanted} is not there; the partition holds {earliest} to {latest}",
        )
        self.partition = partition
        self.wanted = wanted
        self.earliest = earliest
        self.latest = latest


async def read_range(
    cluster: Cluster,
    partition: TopicPartition,
    start: int,
    end: int,
    *,
    columns: Sequence[str] = Shape().columns,
    timestamp_unit: str = "ms",
    isolation: int = READ_UNCOMMITTED,
    max_bytes: int = RANGE_FETCH_BYTES,
    rows_max: int = ROWS_AT_ONCE,
    topic_id: Uuid | None = None,
    check_crcs: bool = True,
    stall_s_max: float = STALL_S_MAX,
) -> AsyncIterator[pa.RecordBatch]:
    """The records with offsets from `start` to before `end`, in batches of at most `rows_max` rows, none of them empty.

    OffsetGone if the log has no such offsets (any more); KafkaError INCONSISTENT_TOPIC_ID if the topic is not, or no longer, the one with
    `topic_id` (default: the one that has its name at the start); KafkaError CORRUPT_MESSAGE for a damaged batch, after all before it.
    """
    shape = Shape(tuple(columns), timestamp_unit).check()
    if start >= end:
        return
    source = _Range(cluster, partition, end, FetchSettings(isolation=isolation), max_bytes, topic_id, stall_s_max)
    constants = Constants(partition)
    fetch = asyncio.ensure_future(source.fetch(start))
    try:
        while True:
            fetched = await fetch
            batches = FetchedBatches(fetched, end_offset=end, check_crcs=check_crcs, constants=constants)
            source.learn(batches)
            if batches.next_offset < end:
                fetch = asyncio.ensure_future(source.fetch(batches.next_offset))
            while not batches.is_spent:
                # In another thread, which needs the interpreter's lock for little of it: meanwhile the next fetch comes in.
                rows = await asyncio.to_thread(batches.take_batch, shape, rows_max)
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
    """What one fetch brings; no records if nothing came within `wait_ms`. KafkaError as the broker says."""
    settings = FetchSettings(
        max_wait_ms=wait_ms, max_bytes=max_bytes, partition_max_bytes=max_bytes, isolation=isolation
    )
    fetched = await _fetch_one(cluster, FetchTarget(partition, offset), settings)
    if fetched.error in PASSING:
        cluster.doubt(partition)  # what we knew of its leader was old: one more, by what is so now
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
    raise UnexpectedAnswer(f"broker {leader} said nothing about {target.partition}")


class _Range:
    def __init__(
        self,
        cluster: Cluster,
        partition: TopicPartition,
        end: int,
        settings: FetchSettings,
        max_bytes: int,
        topic_id: Uuid | None,
        stall_s_max: float,
    ) -> None:
        self._cluster = cluster
        self._partition = partition
        self._end = end
        self._settings = settings
        self._max_bytes = max_bytes
        self._topic_id = topic_id
        self._stall_s_max = stall_s_max
        self._bytes_per_offset: float | None = None

    def learn(self, batches: FetchedBatches) -> None:
        self._bytes_per_offset = batches.size / max(1, batches.next_offset - batches.position)

    async def fetch(self, offset: int) -> FetchedPartition:
        """Something from `offset` on: a fetch that goes further, or an error."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        deadline = began + self._stall_s_max
        while True:
            failure: Exception
            try:
                fetched = await self._fetch_once(offset)
                if len(fetched.data):
                    return fetched
                failure = OffsetGone(self._partition, offset, fetched.log_start_offset, fetched.end_offset)
            except (Disconnected, NoAnswer) as error:
                failure = error
            except KafkaError as error:
                if error.code not in PASSING:
                    raise
                failure = error
            if isinstance(failure, TopicChanged):
                deadline = min(deadline, began + OLD_NEWS_S_MAX)
            if loop.time() + RETRY_BACKOFF_S > deadline:
                raise failure
            if not isinstance(failure, OffsetGone):  # that one has waited at the broker already
                self._cluster.doubt(self._partition)
                await asyncio.sleep(RETRY_BACKOFF_S)

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
            return  # a cluster without topic ids
        if self._topic_id is None:
            self._topic_id = now
        if self._topic_id != now:
            raise TopicChanged(self._partition.topic, self._topic_id, now)


class TopicChanged(KafkaError):
    """The topic was deleted, and another one has its name."""

    def __init__(self, topic: str, before: Uuid, now: Uuid) -> None:
        super().__init__(
            ErrorCode.INCONSISTENT_TOPIC_ID,
            f"topic {topic} was made anew: its id was {uuid_text(before)} and is {uuid_text(now)}",
        )
        self.before = before
        self.now = now

"""The consumer: returns the records of its partitions in order, as records or Arrow batches, and commits positions.

    async with AsyncConsumer({"bootstrap.servers": "localhost:9092", "group.id": "g", "auto.offset.reset": "earliest"}) as consumer:
        consumer.subscribe(["orders"])
        for partition, rows in await consumer.poll_batch():
            ...

Create and use a consumer inside one event loop, and poll it from one task at a time. Records returned by one poll count
as processed at the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.base.errors import ConfigError, HeadraceError, KafkaError
from headrace.base.ids import TopicPartition
from headrace.client.consumer.decoding import ROWS_AT_ONCE, ConsumerRecord, FetchedBatches, Shape
from headrace.client.consumer.group_consumer import Callback, Callbacks, GroupReading
from headrace.client.consumer.list_offsets import EARLIEST, LATEST, NO_OFFSET, ListedOffset, list_offsets
from headrace.client.consumer.metrics import ConsumerSensors
from headrace.client.consumer.options import CONSUMER_OPTIONS, consumer_settings
from headrace.client.consumer.position_lookup import PositionLookup
from headrace.client.consumer.positions import Positions
from headrace.client.consumer.prefetching import Prefetcher
from headrace.client.group.membership import CommittedOffset, GroupMetadata, Subscription
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.opening import client_values, open_cluster

if TYPE_CHECKING:
    import pyarrow as pa

POLL_S = 1.0
LOOK_S = 1.0  # seconds after which a waiting poll attends to its group again
CLOSE_S_MAX = 30.0


class AsyncConsumer:
    """A consumer for asyncio, configured with Kafka's options. Poll it from one task at a time."""

    def __init__(self, options: Mapping[str, object], *, cluster: Cluster | None = None) -> None:
        """Create a consumer; a `cluster` passed in is not closed. Raise ConfigError naming an unusable option."""
        values = client_values(options, CONSUMER_OPTIONS)
        self._settings = consumer_settings(values, options)
        self._loop = asyncio.get_running_loop()
        self._owns_cluster = cluster is None
        self._cluster = open_cluster(values) if cluster is None else cluster
        self._positions = Positions()
        self._woken = asyncio.Event()
        self._sensors = ConsumerSensors(self._loop.time, self._positions)
        self._group: GroupReading | None = None
        if self._settings.group_id is not None:
            self._group = GroupReading(
                self._cluster, values, self._settings, self._positions, self._sensors, self._woken.set
            )
        self._prefetcher = Prefetcher(self._cluster, self._positions, self._settings, self._sensors, self._woken.set)
        self._lookup = PositionLookup(
            self._cluster,
            self._positions,
            self._settings,
            None if self._group is None else self._look_up_committed,
            self._prefetcher.fail,
            self._woken.set,
        )
        self._is_subscribed = False
        self._is_closed = False

    async def __aenter__(self) -> AsyncConsumer:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Connect to the cluster. Raise Disconnected if no broker of bootstrap.servers responds.

        Calling this is optional, but reports a wrong address early.
        """
        await self._cluster.refresh([])

    async def close(self, timeout_s: float = CLOSE_S_MAX) -> None:
        """Commit if enable.auto.commit is set, leave the group, and close all connections."""
        if self._is_closed:
            return
        self._is_closed = True
        try:
            await self._lookup.close()
            await self._prefetcher.close()
            if self._group is not None:
                await self._group.close(timeout_s)
        finally:
            if self._owns_cluster:
                await self._cluster.close()

    # --- assignment

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, without group assignment; those already being read keep their positions.

        Raise HeadraceError if the consumer is subscribed.
        """
        self._check_open()
        if self._is_subscribed:
            raise HeadraceError("this consumer is subscribed: its group assigns; unsubscribe first")
        self._positions.assign(TopicPartition(*one) for one in partitions)

    def subscribe(
        self,
        topics: Collection[str] = (),
        *,
        pattern: str | None = None,
        on_assigned: Callback | None = None,
        on_revoked: Callback | None = None,
        on_lost: Callback | None = None,
    ) -> None:
        """Read the partitions that the group assigns to this member.

        The group divides the partitions of `topics`, or of the topics that `pattern` (RE2) matches. Callbacks are
        called with the partitions, inside poll, unsubscribe and close.
        """
        self._check_open()
        if self._group is None:
            raise ConfigError("group.id must be set: who subscribes, does so as a member of a group")
        if isinstance(topics, str):
            raise TypeError("topics is a collection of names, not one name")
        if bool(topics) == (pattern is not None):
            raise ValueError("either topics or a pattern")
        if not self._is_subscribed and self._positions.items():
            raise HeadraceError("this consumer has partitions that were assigned by hand: assign none first")
        self._is_subscribed = True
        self._group.subscribe(Subscription(frozenset(topics), pattern), Callbacks(on_assigned, on_revoked, on_lost))

    async def unsubscribe(self, timeout_s: float = CLOSE_S_MAX) -> None:
        """Leave the group and stop reading."""
        if self._group is not None:
            await self._group.leave(timeout_s)
        self._is_subscribed = False
        self._positions.assign(())

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that are read; with `subscribe`, those that the group has assigned so far."""
        return frozenset(self._positions)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no records of these partitions from polls until they are resumed."""
        for partition in partitions:
            self._positions.of(partition).paused = True

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Return records of paused partitions from polls again. Raise HeadraceError if one is not assigned."""
        for partition in partitions:
            self._positions.of(partition).paused = False
        self._woken.set()

    def paused(self) -> frozenset[TopicPartition]:
        """Return the assigned partitions that are paused."""
        return frozenset(partition for partition, position in self._positions.items() if position.paused)

    # --- reading

    async def poll(self, timeout_s: float = POLL_S, max_records: int | None = None) -> list[ConsumerRecord]:
        """Return the next records, at most `max_records` (default: max.poll.records); none if none arrived in time.

        Raise KafkaError where the application has to decide: CORRUPT_MESSAGE (naming partition and offset; seek beyond
        it to continue), OFFSET_OUT_OF_RANGE with auto.offset.reset=none, TOPIC_AUTHORIZATION_FAILED …; the next poll
        continues with the rest.
        """
        records: list[ConsumerRecord] = []

        def take(batches: FetchedBatches, rows_max: int) -> int:
            taken = batches.take_records(rows_max)
            records.extend(taken)
            return len(taken)

        await self._poll(timeout_s, take, self._settings.poll_records_max if max_records is None else max_records)
        return records

    async def poll_batch(
        self,
        timeout_s: float = POLL_S,
        max_records: int = ROWS_AT_ONCE,
        *,
        columns: Sequence[str] = Shape().columns,
        timestamp_unit: str = "ms",
    ) -> list[tuple[TopicPartition, pa.RecordBatch]]:
        """Return the next records as Arrow batches of one partition each, with at most `max_records` rows in all.

        The columns are any of topic, partition, offset, timestamp, timestamp_type, key, value, headers; columns not
        requested cost nothing. Errors are those of `poll`.
        """
        shape = Shape(tuple(columns), timestamp_unit).check()
        found: list[tuple[TopicPartition, pa.RecordBatch]] = []

        def take(batches: FetchedBatches, rows_max: int) -> int:
            rows = batches.take_batch(shape, rows_max)
            if rows is None:
                return 0
            found.append((batches.partition, rows))
            return int(rows.num_rows)

        await self._poll(timeout_s, take, max_records)
        return found

    async def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        """Yield single records while the consumer is open.

        Positions advance with each record, so a commit covers exactly the records yielded.
        """
        while not self._is_closed:
            for record in await self.poll(LOOK_S, max_records=1):
                yield record

    async def _poll(self, timeout_s: float, take: Callable[[FetchedBatches, int], int], rows_max: int) -> None:
        self._check_open()
        deadline = self._loop.time() + timeout_s
        self._sensors.polled()
        while True:
            self._woken.clear()
            left = max(0.0, deadline - self._loop.time())
            if self._group is not None:
                await self._group.poll(0.0 if self._prefetcher.take() is not None else min(left, LOOK_S))
            failure = self._prefetcher.failure()
            if failure is not None:
                raise failure
            self._lookup.start()
            rows = self._take(take, rows_max)
            self._prefetcher.send()
            left = deadline - self._loop.time()
            if rows or left <= 0:
                return
            try:
                async with asyncio.timeout(min(left, LOOK_S)):
                    await self._woken.wait()
            except TimeoutError:
                pass

    def _take(self, take: Callable[[FetchedBatches, int], int], rows_max: int) -> int:
        rows = 0
        while rows < rows_max and (batches := self._prefetcher.take()) is not None:
            try:
                count = take(batches, rows_max - rows)
            except KafkaError as error:
                self._prefetcher.drop(batches)
                if rows == 0:
                    raise
                self._prefetcher.fail(error)  # raised by the next poll, after the good records have been returned
                break
            self._positions.consumed(batches.partition, batches.position, batches.epoch)
            rows += count
            self._sensors.records.record(count)
            if batches.is_spent:
                self._sensors.bytes.record(batches.size)
                self._sensors.lag.record(self._positions.of(batches.partition).lag or 0)
        return rows

    # --- positions

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue reading the partition at the first record at or after `offset`."""
        if offset < 0:
            raise ValueError(f"{partition}: offset {offset} is below zero")
        self._positions.of(partition).jump(offset)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue reading these partitions, or all assigned ones if None, at their first offsets.

        The offsets are looked up by the next poll. Raise HeadraceError if a partition is not assigned.
        """
        self._seek_to(partitions, EARLIEST)

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue reading these partitions, or all assigned ones if None, at their end offsets.

        With read_committed, the end is the last stable offset. The offsets are looked up by the next poll. Raise
        HeadraceError if a partition is not assigned.
        """
        self._seek_to(partitions, LATEST)

    def seek_to_time(self, partitions: Iterable[TopicPartition] | None, timestamp_ms: int) -> None:
        """Continue at the first record at or after the timestamp, or at the end if there is none."""
        self._seek_to(partitions, max(0, timestamp_ms))

    def _seek_to(self, partitions: Iterable[TopicPartition] | None, timestamp: int) -> None:
        for partition in self._positions if partitions is None else partitions:
            self._positions.of(partition).jump(None, reset_to=timestamp)

    async def position(self, partition: TopicPartition, timeout_s: float | None = None) -> int:
        """Return the offset of the next record for the application, looking it up if it is not known yet.

        Raise TimeoutError if it is not found in time.
        """
        limit_s = self._limit(timeout_s)
        deadline = self._loop.time() + limit_s
        while (offset := self._positions.of(partition).offset) is None:
            self._woken.clear()
            self._lookup.start()
            failure = self._prefetcher.failure()
            if failure is not None:
                raise failure
            try:
                async with asyncio.timeout_at(deadline):
                    await self._woken.wait()
            except TimeoutError:
                raise TimeoutError(f"the position of {partition} was not found within {limit_s:g} s") from None
        return offset

    def positions(self) -> dict[TopicPartition, CommittedOffset]:
        """Return the known positions, as `commit` without offsets commits them; also for `transaction.send_offsets`."""
        return self._positions.to_commit()

    def lag(self, partition: TopicPartition) -> int | None:
        """Return the records between position and end as of the last fetch, or None if there was no fetch yet."""
        return self._positions.of(partition).lag

    async def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the first offset of each partition.

        Raise KafkaError at once if a partition does not exist; other failures are retried for up to `timeout_s` (None:
        default.api.timeout.ms).
        """
        return await self._listed(dict.fromkeys(partitions, EARLIEST), timeout_s)

    async def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the end offsets; with read_committed, the last stable offsets."""
        return await self._listed(dict.fromkeys(partitions, LATEST), timeout_s)

    async def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int], timeout_s: float | None = None
    ) -> dict[TopicPartition, ListedOffset | None]:
        """Return the first offset at or after each timestamp, or None where there is no such record."""
        for partition, timestamp in times_ms.items():
            if timestamp < 0:
                raise ValueError(f"{partition}: time {timestamp} is below zero")
        found = await list_offsets(self._cluster, times_ms, timeout_s=self._limit(timeout_s))
        return {partition: None if one.offset == NO_OFFSET else one for partition, one in found.items()}

    async def _listed(self, times: Mapping[TopicPartition, int], timeout_s: float | None) -> dict[TopicPartition, int]:
        isolation = self._settings.fetch.isolation
        found = await list_offsets(self._cluster, times, isolation=isolation, timeout_s=self._limit(timeout_s))
        return {partition: one.offset for partition, one in found.items()}

    async def partitions_for(self, topic: str) -> list[int]:
        """Return the topic's partitions, waiting up to request.timeout.ms until all have leaders.

        Raise KafkaError with UNKNOWN_TOPIC_OR_PARTITION at once if the topic does not exist; it is not created.
        """
        return await self._cluster.partitions(topic)

    # --- commits

    async def commit(
        self,
        offsets: Mapping[TopicPartition, CommittedOffset | int] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Commit these offsets (of the next records to read), or all positions.

        Raise KafkaError if some could not be committed; others may have been.
        """
        given = self._to_commit(offsets)
        await self._group_or_error().commit(given, self._limit(timeout_s))

    def commit_async(self, offsets: Mapping[TopicPartition, CommittedOffset | int] | None = None) -> asyncio.Task[None]:
        """Commit like `commit`, in a background task; the returned task holds the outcome."""
        given = self._to_commit(offsets)
        return self._loop.create_task(self._group_or_error().commit(given, self._settings.api_timeout_s))

    async def committed(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return the group's committed offsets, leaving out partitions without one."""
        return await self._group_or_error().committed(list(partitions), self._limit(timeout_s))

    def group_metadata(self) -> GroupMetadata:
        """Return the group metadata for `transaction.send_offsets`."""
        return self._group_or_error().metadata

    def _to_commit(
        self, offsets: Mapping[TopicPartition, CommittedOffset | int] | None
    ) -> dict[TopicPartition, CommittedOffset]:
        if offsets is None:
            return self._positions.to_commit()
        return {
            partition: CommittedOffset(offset) if isinstance(offset, int) else offset
            for partition, offset in offsets.items()
        }

    async def _look_up_committed(self, partitions: list[TopicPartition]) -> dict[TopicPartition, CommittedOffset]:
        return await self._group_or_error().committed(partitions, self._settings.api_timeout_s)

    def _group_or_error(self) -> GroupReading:
        if self._group is None:
            raise ConfigError("group.id must be set: offsets are committed for a group")
        return self._group

    # --- metrics and checks

    def metrics(self) -> dict[str, float]:
        """Return the metrics under Kafka's names; a single partition's lag is `topic-partition.records-lag`."""
        return self._sensors.read()

    def _limit(self, timeout_s: float | None) -> float:
        return self._settings.api_timeout_s if timeout_s is None else timeout_s

    def _check_open(self) -> None:
        if self._is_closed:
            raise HeadraceError("the consumer is closed")

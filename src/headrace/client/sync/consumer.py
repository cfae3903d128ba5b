"""The blocking consumer.

with Consumer({"bootstrap.servers": "localhost:9092", "group.id": "g", "auto.offset.reset": "earliest"}) as consumer:
    consumer.subscribe(["orders"])
    for partition, rows in consumer.poll_batch():
        ...
"""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.base.errors import HeadraceError
from headrace.base.ids import TopicPartition
from headrace.client.consumer.consumer import CLOSE_S_MAX, LOOK_S, POLL_S, AsyncConsumer
from headrace.client.consumer.decoding import ROWS_AT_ONCE, ConsumerRecord, Shape
from headrace.client.consumer.list_offsets import ListedOffset
from headrace.client.group.membership import CommittedOffset, GroupMetadata
from headrace.client.sync.background import Calls, background, passed_on

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

# Called with the partitions that were assigned, revoked or lost; its result is ignored.
Callback = Callable[[frozenset[TopicPartition]], object]


class Caller:
    """Runs callbacks in the application's thread while it waits for a poll, so that they may use the consumer."""

    def __init__(self) -> None:
        self.calls: Calls | None = None

    def wrap(
        self, callback: Callback | None
    ) -> Callable[[frozenset[TopicPartition]], Coroutine[Any, Any, None]] | None:
        if callback is None:
            return None

        async def called(partitions: frozenset[TopicPartition]) -> None:
            calls = self.calls
            if calls is None:  # no thread is waiting: the interpreter is exiting, or the consumer was garbage-collected
                await asyncio.to_thread(callback, partitions)
                return
            loop = asyncio.get_running_loop()
            ended: asyncio.Future[None] = loop.create_future()

            def call() -> None:
                try:
                    callback(partitions)
                except BaseException as error:
                    loop.call_soon_threadsafe(_end, ended, error)
                    if not isinstance(error, Exception):
                        raise
                else:
                    loop.call_soon_threadsafe(_end, ended, None)

            calls.put(call)
            await ended

        return called


def _end(future: asyncio.Future[None], error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    elif isinstance(error, Exception):
        future.set_exception(error)
    else:
        future.cancel()  # `call` raises the error in the application's thread


class Consumer:
    """A blocking consumer with the interface of `AsyncConsumer`. Use it from one thread at a time."""

    def __init__(self, options: Mapping[str, object]) -> None:
        """Create a consumer from options with Kafka's names. Raise ConfigError naming an unusable option."""
        self._background = background()
        self._consumer = self._background.call(AsyncConsumer, options)
        self._caller = Caller()
        self._is_closed = False
        self._background.opened(self, self._consumer.close)

    def __enter__(self) -> Consumer:
        try:
            self.start()
        except BaseException:
            self.close(0.0)
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _served(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for the result of `work`, running callbacks meanwhile."""
        if self._caller.calls is not None:
            work.close()
            raise HeadraceError("a consumer is polled by one thread, and not inside its callbacks")
        calls: Calls = queue.SimpleQueue()
        self._caller.calls = calls
        try:
            return self._background.do_and_call(work, calls)
        finally:
            self._caller.calls = None

    def start(self) -> None:
        """Connect to the cluster. Raise Disconnected if no broker of bootstrap.servers responds.

        Calling this is optional, but reports a wrong address early.
        """
        self._background.do(self._consumer.start())

    def close(self, timeout_s: float = CLOSE_S_MAX) -> None:
        """Commit if enable.auto.commit is set, leave the group, and close all connections."""
        if self._is_closed or not self._background.is_here:  # a forked child leaves this to its parent
            return
        if self._caller.calls is not None:
            raise HeadraceError("a consumer cannot be closed inside its callbacks")
        self._is_closed = True
        self._background.closed(self)
        self._served(self._consumer.close(timeout_s))

    # --- assignment

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions, without group assignment; those already being read keep their positions.

        Raise HeadraceError if the consumer is subscribed.
        """
        self._background.call(self._consumer.assign, partitions)

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
        called with the partitions, inside poll, unsubscribe and close and in the calling thread; they may use the
        consumer.
        """
        wrap = self._caller.wrap
        self._background.call(
            self._consumer.subscribe,
            topics,
            pattern=pattern,
            on_assigned=wrap(on_assigned),
            on_revoked=wrap(on_revoked),
            on_lost=wrap(on_lost),
        )

    def unsubscribe(self, timeout_s: float = CLOSE_S_MAX) -> None:
        """Leave the group and stop reading."""
        self._served(self._consumer.unsubscribe(timeout_s))

    def assignment(self) -> frozenset[TopicPartition]:
        """Return the partitions that are read; with `subscribe`, those that the group has assigned so far."""
        return self._background.call(self._consumer.assignment)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Return no records of these partitions from polls until they are resumed."""
        self._background.call(self._consumer.pause, partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Return records of paused partitions from polls again. Raise HeadraceError if one is not assigned."""
        self._background.call(self._consumer.resume, partitions)

    def paused(self) -> frozenset[TopicPartition]:
        """Return the assigned partitions that are paused."""
        return self._background.call(self._consumer.paused)

    # --- reading

    def poll(self, timeout_s: float = POLL_S, max_records: int | None = None) -> list[ConsumerRecord]:
        """Return the next records, at most `max_records` (default: max.poll.records); none if none arrived in time.

        Raise KafkaError where the application has to decide: CORRUPT_MESSAGE (naming partition and offset; seek beyond
        it to continue), OFFSET_OUT_OF_RANGE with auto.offset.reset=none, TOPIC_AUTHORIZATION_FAILED …; the next poll
        continues with the rest.
        """
        return self._served(self._consumer.poll(timeout_s, max_records))

    def poll_batch(
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
        polled = self._consumer.poll_batch(timeout_s, max_records, columns=columns, timestamp_unit=timestamp_unit)
        return self._served(polled)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Yield single records while the consumer is open; `poll` is faster.

        Positions advance with each record, so a commit covers exactly the records yielded.
        """
        while not self._is_closed:
            yield from self.poll(LOOK_S, max_records=1)

    # --- positions

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue reading the partition at the first record at or after `offset`."""
        self._background.call(self._consumer.seek, partition, offset)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue reading these partitions, or all assigned ones if None, at their first offsets.

        The offsets are looked up by the next poll. Raise HeadraceError if a partition is not assigned.
        """
        self._background.call(self._consumer.seek_to_beginning, partitions)

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Continue reading these partitions, or all assigned ones if None, at their end offsets.

        With read_committed, the end is the last stable offset. The offsets are looked up by the next poll. Raise
        HeadraceError if a partition is not assigned.
        """
        self._background.call(self._consumer.seek_to_end, partitions)

    def seek_to_time(self, partitions: Iterable[TopicPartition] | None, timestamp_ms: int) -> None:
        """Continue at the first record at or after the timestamp, or at the end if there is none."""
        self._background.call(self._consumer.seek_to_time, partitions, timestamp_ms)

    def position(self, partition: TopicPartition, timeout_s: float | None = None) -> int:
        """Return the offset of the next record for the application, looking it up if it is not known yet.

        Raise TimeoutError if it is not found in time.
        """
        return self._background.do(self._consumer.position(partition, timeout_s))

    def positions(self) -> dict[TopicPartition, CommittedOffset]:
        """Return the known positions, as `commit` without offsets commits them; also for `transaction.send_offsets`."""
        return self._background.call(self._consumer.positions)

    def lag(self, partition: TopicPartition) -> int | None:
        """Return the records between position and end as of the last fetch, or None if there was no fetch yet."""
        return self._background.call(self._consumer.lag, partition)

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the first offset of each partition.

        Raise KafkaError at once if a partition does not exist; other failures are retried for up to `timeout_s` (None:
        default.api.timeout.ms).
        """
        return self._background.do(self._consumer.beginning_offsets(partitions, timeout_s))

    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """Return the end offsets; with read_committed, the last stable offsets."""
        return self._background.do(self._consumer.end_offsets(partitions, timeout_s))

    def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int], timeout_s: float | None = None
    ) -> dict[TopicPartition, ListedOffset | None]:
        """Return the first offset at or after each timestamp, or None where there is no such record."""
        return self._background.do(self._consumer.offsets_for_times(times_ms, timeout_s))

    def partitions_for(self, topic: str) -> list[int]:
        """Return the topic's partitions, waiting up to request.timeout.ms until all have leaders.

        Raise KafkaError with UNKNOWN_TOPIC_OR_PARTITION at once if the topic does not exist; it is not created.
        """
        return self._background.do(self._consumer.partitions_for(topic))

    # --- commits

    def commit(
        self,
        offsets: Mapping[TopicPartition, CommittedOffset | int] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Commit these offsets (of the next records to read), or all positions.

        Raise KafkaError if some could not be committed; others may have been.
        """
        self._background.do(self._consumer.commit(offsets, timeout_s))

    def commit_async(self, offsets: Mapping[TopicPartition, CommittedOffset | int] | None = None) -> Future[None]:
        """Commit like `commit`, in the background; the returned future holds the outcome."""
        return self._background.call(lambda: passed_on(self._consumer.commit_async(offsets)))

    def committed(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """Return the group's committed offsets, leaving out partitions without one."""
        return self._background.do(self._consumer.committed(partitions, timeout_s))

    def group_metadata(self) -> GroupMetadata:
        """Return the group metadata for `transaction.send_offsets`."""
        return self._background.call(self._consumer.group_metadata)

    def metrics(self) -> dict[str, float]:
        """Return the metrics under Kafka's names; a single partition's lag is `topic-partition.records-lag`."""
        return self._background.call(self._consumer.metrics)

"""The consumer without await.

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
from headrace.client.consumer import CLOSE_S_MAX, LOOK_S, POLL_S, AsyncConsumer
from headrace.client.decoding import ROWS_AT_ONCE, ConsumerRecord, Shape
from headrace.client.face.background import Calls, background, passed_on
from headrace.client.list_offsets import ListedOffset
from headrace.client.membership import CommittedOffset, GroupMetadata

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

Callback = Callable[[frozenset[TopicPartition]], object]


class Caller:
    """Callbacks of the application run in its thread, while that waits for a poll; so they may use the consumer."""

    def __init__(self) -> None:
        self.calls: Calls | None = None

    def wrap(
        self, callback: Callback | None
    ) -> Callable[[frozenset[TopicPartition]], Coroutine[Any, Any, None]] | None:
        if callback is None:
            return None

        async def called(partitions: frozenset[TopicPartition]) -> None:
            calls = self.calls
            if calls is None:  # nobody waits: the interpreter ends, or nobody has the consumer any more
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
        future.cancel()  # the application's thread has it


class Consumer:
    """What `AsyncConsumer` is. To be used by one thread at a time."""

    def __init__(self, options: Mapping[str, object]) -> None:
        """Options in Kafka's names (consumer_options.py); ConfigError names one that cannot be used."""
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
        """Waits for it, and runs callbacks meanwhile."""
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
        """Finds the cluster: Disconnected if nobody answers at bootstrap.servers. Not needed, but a wrong address is known sooner."""
        self._background.do(self._consumer.start())

    def close(self, timeout_s: float = CLOSE_S_MAX) -> None:
        """Commits if it does so by itself, leaves the group, closes connections."""
        if self._is_closed or not self._background.is_here:  # a child of a fork leaves it to its parent
            return
        if self._caller.calls is not None:
            raise HeadraceError("a consumer cannot be closed inside its callbacks")
        self._is_closed = True
        self._background.closed(self)
        self._served(self._consumer.close(timeout_s))

    # --- what is read

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """These and no others, without asking a group; those that were read before keep their positions."""
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
        """As a member of the group: what of these topics, or of those that the pattern (RE2) matches, is read here, the group decides.

        The callbacks get partitions; they are called inside poll and close, by the thread that does so, and may use the consumer.
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
        """Leaves the group, and reads nothing any more."""
        self._served(self._consumer.unsubscribe(timeout_s))

    def assignment(self) -> frozenset[TopicPartition]:
        return self._background.call(self._consumer.assignment)

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Polls give nothing of them until they are resumed."""
        self._background.call(self._consumer.pause, partitions)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        self._background.call(self._consumer.resume, partitions)

    def paused(self) -> frozenset[TopicPartition]:
        return self._background.call(self._consumer.paused)

    # --- reading

    def poll(self, timeout_s: float = POLL_S, max_records: int | None = None) -> list[ConsumerRecord]:
        """The next records, at most max.poll.records; none if none came in time. Errors as with the asyncio consumer."""
        return self._served(self._consumer.poll(timeout_s, max_records))

    def poll_batch(
        self,
        timeout_s: float = POLL_S,
        max_records: int = ROWS_AT_ONCE,
        *,
        columns: Sequence[str] = Shape().columns,
        timestamp_unit: str = "ms",
    ) -> list[tuple[TopicPartition, pa.RecordBatch]]:
        """The next records as Arrow record batches, each of one partition, with at most so many rows in all.

        Columns are any of topic, partition, offset, timestamp, timestamp_type, key, value, headers: what is not asked for costs nothing.
        """
        polled = self._consumer.poll_batch(timeout_s, max_records, columns=columns, timestamp_unit=timestamp_unit)
        return self._served(polled)

    def __iter__(self) -> Iterator[ConsumerRecord]:
        """Record by record, for as long as the consumer is open; a commit covers what was given and no more. `poll` is faster."""
        while not self._is_closed:
            yield from self.poll(LOOK_S, max_records=1)

    # --- positions

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """The next record of it will be the first from `offset` on."""
        self._background.call(self._consumer.seek, partition, offset)

    def seek_to_beginning(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        self._background.call(self._consumer.seek_to_beginning, partitions)

    def seek_to_end(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        self._background.call(self._consumer.seek_to_end, partitions)

    def seek_to_time(self, partitions: Iterable[TopicPartition] | None, timestamp_ms: int) -> None:
        """To the first record at or after that time; to the end if there is none."""
        self._background.call(self._consumer.seek_to_time, partitions, timestamp_ms)

    def position(self, partition: TopicPartition, timeout_s: float | None = None) -> int:
        """Of the next record for the application; looked up if that was not done yet."""
        return self._background.do(self._consumer.position(partition, timeout_s))

    def positions(self) -> dict[TopicPartition, CommittedOffset]:
        """Those that are known: what a commit without offsets would commit now."""
        return self._background.call(self._consumer.positions)

    def lag(self, partition: TopicPartition) -> int | None:
        """Records between the position and the end, as the last fetch told it; None if there was none yet."""
        return self._background.call(self._consumer.lag, partition)

    def beginning_offsets(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        return self._background.do(self._consumer.beginning_offsets(partitions, timeout_s))

    def end_offsets(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, int]:
        """With read_committed the last stable offsets."""
        return self._background.do(self._consumer.end_offsets(partitions, timeout_s))

    def offsets_for_times(
        self, times_ms: Mapping[TopicPartition, int], timeout_s: float | None = None
    ) -> dict[TopicPartition, ListedOffset | None]:
        """The first records at or after these times; None where there is none."""
        return self._background.do(self._consumer.offsets_for_times(times_ms, timeout_s))

    def partitions_for(self, topic: str) -> list[int]:
        return self._background.do(self._consumer.partitions_for(topic))

    # --- what is committed

    def commit(
        self,
        offsets: Mapping[TopicPartition, CommittedOffset | int] | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """These (of the next records to read), else all positions. KafkaError if they cannot be: then none may be."""
        self._background.do(self._consumer.commit(offsets, timeout_s))

    def commit_async(self, offsets: Mapping[TopicPartition, CommittedOffset | int] | None = None) -> Future[None]:
        """What `commit` does, beside; the future has its end."""
        return self._background.call(lambda: passed_on(self._consumer.commit_async(offsets)))

    def committed(
        self, partitions: Iterable[TopicPartition], timeout_s: float | None = None
    ) -> dict[TopicPartition, CommittedOffset]:
        """Without those for which the group has committed nothing."""
        return self._background.do(self._consumer.committed(partitions, timeout_s))

    def group_metadata(self) -> GroupMetadata:
        """For offsets in a transaction (`transaction.send_offsets`)."""
        return self._background.call(self._consumer.group_metadata)

    def metrics(self) -> dict[str, float]:
        """In Kafka's names; the lag of one partition is `topic-partition.records-lag`."""
        return self._background.call(self._consumer.metrics)

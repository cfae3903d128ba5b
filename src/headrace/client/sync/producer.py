"""The blocking producer.

with Producer({"bootstrap.servers": "localhost:9092"}) as producer:
    sent = producer.send("orders", b"value", b"key")
    print(sent.result().offset)
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.client.group.membership import CommittedOffset, GroupMetadata
from headrace.client.producer.buffer_space import BufferFull
from headrace.client.producer.deliveries import Sent, SentRange
from headrace.client.producer.partitioners import Partitioner
from headrace.client.producer.producer import AsyncProducer, ProducerClosed
from headrace.client.producer.record_arguments import check_record
from headrace.client.producer.transaction_requests import AbortableTransactionError, TransactionIdentity
from headrace.client.producer.transaction_session import TransactionState
from headrace.client.sync.background import Background, background, pass_on, passed_on
from headrace.client.tasks import end_tasks

if TYPE_CHECKING:
    import pyarrow as pa

HANDED_MAX = 1000  # records waiting for the event loop's thread before `send` blocks
LOOK_S = 1.0  # seconds after which a blocked `send` checks again whether the producer is still open


class _Handed(NamedTuple):
    at: float  # time of the handover, by time.monotonic
    delivery: Future[Sent]
    topic: str
    value: bytes | None
    key: bytes | None
    partition: int | None
    timestamp_ms: int | None
    headers: tuple[tuple[str, bytes | None], ...]


class Handover:
    """Passes records from other threads to the event loop, in order and in bulk.

    Switching threads for each record would cost more than sending it.
    """

    def __init__(self, producer: AsyncProducer, loop: asyncio.AbstractEventLoop) -> None:
        self.producer = producer
        self.refused: Exception | None = (
            None  # first error of a record that was not accepted since the transaction began
        )
        self.is_closed = False
        self._loop = loop
        self._records: deque[_Handed | asyncio.Future[None]] = deque()  # futures belong to callers of `through`
        self._stuck: Exception | None = None  # timeout error of the last record; None while records are accepted
        self._is_awake = False
        self._woken = asyncio.Event()
        self._space = threading.Event()
        self._task: asyncio.Task[None] | None = None

    def put(self, record: _Handed) -> None:
        """Queue a record, from any thread; block while the queue is full."""
        if self.is_closed:
            raise ProducerClosed("the producer is closed")
        self._records.append(record)
        if not self._is_awake:
            self._is_awake = True
            self._loop.call_soon_threadsafe(self._wake)
        while len(self._records) > HANDED_MAX and not self.is_closed:
            self._space.clear()
            if len(self._records) > HANDED_MAX:
                self._space.wait(LOOK_S)
        if self.is_closed:
            self._refuse_all()

    def _wake(self) -> None:
        self._woken.set()
        if self._task is None:
            self._task = self._loop.create_task(self._run())

    async def _run(self) -> None:
        while True:
            self._is_awake = False  # before the check, so that a later `put` wakes this task again
            if not self._records:
                self._woken.clear()
                await self._woken.wait()
            self._is_awake = True
            while self._records:
                record = self._records.popleft()
                if isinstance(record, _Handed):
                    await self._send(record)
                elif not record.done():
                    record.set_result(None)
                if len(self._records) == HANDED_MAX // 2:
                    self._space.set()
            self._space.set()

    async def _send(self, record: _Handed) -> None:
        at, delivery, topic, value, key, partition, timestamp_ms, headers = record
        try:
            if self._stuck is not None and time.monotonic() - at > self.producer.block_s:
                raise self._stuck  # it has already waited as long in the queue; do not wait again for each record
            sent = await self.producer.send(
                topic, value, key, partition=partition, timestamp_ms=timestamp_ms, headers=headers
            )
            self._stuck = None
        except Exception as error:
            self._stuck = error if _is_timeout(error) else None
            self.refused = self.refused or error
            if delivery.set_running_or_notify_cancel():
                delivery.set_exception(error)
        except asyncio.CancelledError:
            self._records.appendleft(record)
            raise
        else:
            pass_on(sent, delivery)

    async def through(self) -> None:
        """Wait until all records handed over so far are in the producer's buffer or refused."""
        if self.is_closed:
            return
        turn = self._loop.create_future()
        self._records.append(turn)
        self._wake()
        await turn

    async def close(self, timeout_s: float | None) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await self.through()
        except TimeoutError:
            pass
        self.is_closed = True
        if self._task is not None:
            await end_tasks([self._task])
        self._refuse_all()
        self._space.set()
        await self.producer.close(timeout_s)

    def _refuse_all(self) -> None:
        with suppress(IndexError):
            while True:
                record = self._records.popleft()
                if isinstance(record, _Handed):
                    if record.delivery.set_running_or_notify_cancel():
                        record.delivery.set_exception(ProducerClosed("the producer is closed"))
                elif not record.done():
                    self._loop.call_soon_threadsafe(record.cancel)


class Producer:
    """A blocking producer with the interface of `AsyncProducer`. It is thread-safe.

    Deliveries are `concurrent.futures.Future`s.
    """

    def __init__(self, options: Mapping[str, object], *, partitioner: Partitioner | None = None) -> None:
        self._background = background()
        self._handover = self._background.do(_open(options, partitioner))
        self._transaction: Transaction | None = None
        handover = self._handover
        self._background.opened(self, lambda: handover.close(None))

    def __enter__(self) -> Producer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        self.close(None if kind is None else 0.0)

    @property
    def transaction(self) -> Transaction:
        """Return the producer's transactions. Raise KafkaError if no transactional.id is set."""
        if self._transaction is None:
            _ = self._handover.producer.transaction
            self._transaction = Transaction(self._background, self._handover)
        return self._transaction

    def metrics(self) -> dict[str, float]:
        """Return the metrics by Kafka's names.

        Rates are per second, times in milliseconds. Rates, averages and maxima cover at most the last minute; averages
        and maxima without a value are NaN.
        """
        return self._background.call(self._handover.producer.metrics)

    def partitions_for(self, topic: str) -> list[int]:
        """Return the topic's partitions, waiting up to max.block.ms; a missing topic is created if brokers do that."""
        return self._background.do(self._handover.producer.partitions_for(topic))

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
    ) -> Future[Sent]:
        """Queue a record and return a future for its delivery; block while buffer.memory and the queue are full.

        The future fails if the record is not accepted within max.block.ms. Raise TypeError or ValueError if an argument
        cannot be sent.
        """
        some = check_record(topic, value, key, partition, timestamp_ms, headers)
        self._background.check()
        delivery: Future[Sent] = Future()
        self._handover.put(_Handed(time.monotonic(), delivery, topic, value, key, partition, timestamp_ms, some))
        return delivery

    def send_batch(
        self, topic: str, rows: pa.RecordBatch | pa.Table, *, partition: int | None = None
    ) -> Future[list[SentRange]]:
        """Add Arrow rows to the buffer and return a future with the offset ranges they were written to.

        The columns are key, value, headers, timestamp, and `partition` for rows with a fixed partition; all are
        optional. They are encoded by the kernel. Return when all rows are in the buffer.
        """

        async def work() -> Future[list[SentRange]]:
            await self._handover.through()
            return passed_on(await self._handover.producer.send_batch(topic, rows, partition=partition))

        return self._background.do(work())

    def flush(self) -> None:
        """Wait until everything sent so far is delivered or has failed; the futures hold the outcomes."""
        self._background.do(_flush(self._handover))

    def close(self, timeout_s: float | None = None) -> None:
        """Abort an open transaction, send what is buffered, and close.

        This takes at most `timeout_s` (None: as long as delivery.timeout.ms allows). A prepared transaction stays
        prepared. Records not sent by then fail with ProducerClosed.
        """
        if self._background.is_here:  # a forked child leaves this to its parent
            self._background.closed(self)
            if not self._handover.is_closed:
                self._background.do(self._handover.close(timeout_s))


class Transaction:
    """The transactions of a producer, one after another; the blocking form of `TransactionSession`."""

    def __init__(self, background: Background, handover: Handover) -> None:
        self._background = background
        self._handover = handover
        self._session = handover.producer.transaction

    @property
    def transactional_id(self) -> str:
        """Return the producer's transactional.id."""
        return self._session.transactional_id

    @property
    def state(self) -> TransactionState:
        """Return the state, which determines the calls that are allowed."""
        return self._session.state

    @property
    def identity(self) -> TransactionIdentity:
        """Return the identity with which any process can end this transaction."""
        return self._background.call(lambda: self._session.identity)

    def init(self, *, keep_prepared: bool = False) -> TransactionIdentity | None:
        """Fence the previous producer of the transactional id and abort its open transaction.

        With `keep_prepared` (two-phase commit), a prepared transaction is kept and returned, to be ended with
        `complete`.
        """
        return self._background.do(self._session.init(keep_prepared=keep_prepared))

    def begin(self) -> None:
        """Begin a transaction, without contacting a broker.

        Raise KafkaError if the producer is not initialized or is fenced, or if its last transaction is not ended yet.
        """

        async def work() -> None:
            await self._session.begin()
            self._handover.refused = None

        self._background.do(work())

    def send_offsets(self, offsets: Mapping[TopicPartition, CommittedOffset], group: GroupMetadata) -> None:
        """Add a group's offsets to the transaction; they are committed only if the transaction is."""
        self._background.do(self._session.send_offsets(offsets, group))

    def prepare(self) -> TransactionIdentity:
        """Flush all records and close the transaction to more; any process with the returned identity may end it."""

        async def work() -> TransactionIdentity:
            await self._all_taken()
            return await self._session.prepare()

        return self._background.do(work())

    def complete(self, prepared: TransactionIdentity) -> None:
        """Commit the prepared transaction that `init` returned if it is `prepared`, else abort it."""
        self._background.do(self._session.complete(prepared))

    def commit(self) -> None:
        """Commit the transaction: all of it becomes visible, or nothing.

        After a timeout, only `commit` may be called again.
        """

        async def work() -> None:
            await self._all_taken()
            await self._session.commit()

        self._background.do(work())

    def abort(self) -> None:
        """Abort the transaction: consumers with read_committed never see its records.

        Deliveries of records that are not sent yet fail. After a timeout, only `abort` may be called again.
        """

        async def work() -> None:
            await self._handover.through()
            await self._session.abort()

        self._background.do(work())

    async def _all_taken(self) -> None:
        """Raise AbortableTransactionError if a record was not accepted, so that no commit goes through without it."""
        await self._handover.through()
        error = self._handover.refused
        if error is not None and self._session.state is TransactionState.OPEN:
            code = error.code if isinstance(error, KafkaError) else ErrorCode.TRANSACTION_ABORTABLE
            message = f"the transaction must be aborted: a record of it was not taken: {error}"
            raise AbortableTransactionError(code, message) from error


def _is_timeout(error: Exception) -> bool:
    return isinstance(error, BufferFull) or (
        isinstance(error, KafkaError) and error.code is ErrorCode.REQUEST_TIMED_OUT
    )


async def _open(options: Mapping[str, object], partitioner: Partitioner | None) -> Handover:
    producer = AsyncProducer(options, partitioner=partitioner)
    await producer.start()
    return Handover(producer, asyncio.get_running_loop())


async def _flush(handover: Handover) -> Any:
    await handover.through()
    await handover.producer.flush()

"""Writes the rows of one task: in a transaction that stays open for the driver to end, or, at least once, without a transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

from headrace.base.errors import ErrorCode, HeadraceError, KafkaError
from headrace.client.producer.producer import AsyncProducer
from headrace.client.producer.transaction_requests import ProducerFenced, TransactionIdentity
from headrace.pipelines.background import background
from headrace.pipelines.sink.commands import SinkError, TaskTransaction
from headrace.pipelines.sink.options import SinkOptions
from headrace.pipelines.sink.rows import rows_by_topic

if TYPE_CHECKING:
    import pyarrow as pa

RUN_CHARS = 8
SLOTS = 16  # see task_id
DELIVERIES_MAX = 1000  # batches of rows in flight before the first of them is awaited
GIVE_UP_S_MAX = 10.0


class Task(NamedTuple):
    """The task attempt that writes, and the batch that it writes."""

    sink: str | None  # None: the write has no name, so no later driver looks for it
    run: str
    batch: int
    partition: int
    attempt: int
    attempt_id: int


def driver_id(prefix: str, sink: str) -> str:
    return f"{prefix}:{sink}"


def task_id(prefix: str, task: Task) -> str:
    """Return the transactional id of a task attempt.

    Each attempt has its own, so that attempts of one task neither fence each other nor share sequence numbers. Brokers
    remember ids for a week, so batches share ids: an attempt that resumes many batches later has the same id as another one in 1 of SLOTS
    cases. Both then fail or are fenced, which is noticed.
    """
    slot = crc32(f"{task.batch}.{task.attempt_id}".encode()) % SLOTS
    return f"{driver_id(prefix, task.sink or task.run)}.{task.run}.{task.partition}.{task.attempt}.{slot}"


class Written(NamedTuple):
    rows: int
    transaction: TaskTransaction | None  # None: there was nothing to write, or the write is at least once


def write_task(rows: Iterable[pa.RecordBatch], options: SinkOptions, task: Task) -> Written:
    """Write all rows and wait until the brokers have them.

    If this raises, none of the rows will ever be visible, unless the write is at least once.
    """
    writer: TaskWriter | None = None
    work = background()
    try:
        count = 0
        for batch in rows:
            if not batch.num_rows:
                continue
            if writer is None:
                writer = work.do(TaskWriter.open(options, task))
            for topic, some in rows_by_topic(batch, options.topic):
                work.do(writer.send(topic, some))
            count += batch.num_rows
        return Written(count, None if writer is None else work.do(writer.finish(count)))
    except BaseException as error:
        if writer is not None:
            with suppress(HeadraceError, TimeoutError):
                work.do(writer.give_up())
        if options.single and isinstance(error, ProducerFenced):
            raise SinkError(
                f"writers=1, but another task writes too: coalesce(1) comes before the write ({error})"
            ) from error
        raise


class TaskWriter:
    def __init__(self, producer: AsyncProducer, task: Task, *, transactional: bool) -> None:
        self._producer = producer
        self._task = task
        self._transactional = transactional
        self._deliveries: list[asyncio.Future[Any]] = []

    @classmethod
    async def open(cls, options: SinkOptions, task: Task) -> TaskWriter:
        given: dict[str, object] = dict(options.producer)
        if options.exactly_once:
            single = driver_id(options.prefix, task.sink or task.run)
            given["transactional.id"] = single if options.single else task_id(options.prefix, task)
            if options.two_phase:
                given["transaction.two.phase.commit.enable"] = True
        producer = AsyncProducer(given, cluster=await background().cluster(options.client))
        await producer.start()
        writer = cls(producer, task, transactional=options.exactly_once)
        if options.exactly_once:
            try:
                await producer.transaction.init()
                await producer.transaction.begin()
            except BaseException as error:
                await producer.close(0.0)
                raise _explained(error) from None
        return writer

    async def send(self, topic: str, rows: pa.RecordBatch) -> None:
        """Send rows, waiting for buffer space and, if DELIVERIES_MAX batches are in flight, for the oldest of them."""
        self._deliveries.append(await self._producer.send_batch(topic, rows))
        if len(self._deliveries) >= DELIVERIES_MAX:
            await self._deliveries.pop(0)

    async def finish(self, rows: int) -> TaskTransaction | None:
        if self._transactional:
            identity: TransactionIdentity = await self._producer.transaction.prepare()
        else:
            await self._producer.flush()
        for delivery in self._deliveries:
            await delivery
        await self._producer.close()
        return TaskTransaction(*identity, self._task.partition, rows) if self._transactional else None

    async def give_up(self) -> None:
        """Abort the open transaction; if that fails, its timeout or the next batch aborts it."""
        for delivery in self._deliveries:
            if delivery.done() and not delivery.cancelled():
                delivery.exception()  # mark the error as retrieved: it has been reported, or follows from one that has
            delivery.cancel()
        async with asyncio.timeout(GIVE_UP_S_MAX):
            await self._producer.close(GIVE_UP_S_MAX)


def _explained(error: BaseException) -> BaseException:
    if isinstance(error, KafkaError) and error.code is ErrorCode.INVALID_TRANSACTION_TIMEOUT:
        return SinkError(
            "the brokers do not allow transactions to take as long as kafka.transaction.timeout.ms says (their transaction.max.timeout.ms)"
        )
    return error

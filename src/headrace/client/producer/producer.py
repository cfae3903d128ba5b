"""The producer: batches and compresses single records or Arrow rows and sends them to the partition leaders.

async with AsyncProducer({"bootstrap.servers": "localhost:9092"}) as producer:
    sent = await producer.send("orders", b"value", b"key")  # waits for buffer space only
    print((await sent).offset)                              # waits for the brokers
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from random import Random
from typing import TYPE_CHECKING

from headrace.base.clock import Clock, SystemClock
from headrace.base.errors import ErrorCode, HeadraceError, KafkaError
from headrace.base.ids import TopicPartition
from headrace.client.producer.accumulator import Accumulator
from headrace.client.producer.batches import Entry, record_bytes
from headrace.client.producer.buffer_space import BufferSpace
from headrace.client.producer.deliveries import RecordDelivery, RowsDelivery, Sent, SentRange
from headrace.client.producer.metrics import ProducerMetrics
from headrace.client.producer.options import PRODUCER_OPTIONS, producer_settings
from headrace.client.producer.outcomes import ProducerContext
from headrace.client.producer.partitioners import Partitioner, RoundRobin, Sticky
from headrace.client.producer.record_arguments import check_record
from headrace.client.producer.sender import OFF_LOOP_BYTES_MIN, Sender
from headrace.client.producer.sequences import Sequences
from headrace.client.producer.topic_counts import TopicCounts
from headrace.client.producer.transaction_session import TransactionSession, TransactionState
from headrace.client.tasks import end_tasks
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.opening import client_values, open_cluster
from headrace.records.batch import HEADER_BYTES
from headrace.records.compression import Codec
from headrace.records.kernel import partition_for_key

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.records.columns import EncodedBatch

EXIT_S_MAX = 5.0  # seconds to send buffered records after the block that used the producer has failed
ROW_OVERHEAD_BYTES = 16  # size of a row beyond its bytes in Arrow, when reserving buffer space for a batch


class ProducerClosed(HeadraceError):
    """The producer is closed or has failed: nothing more can be sent, and unsent records never will be."""


class AsyncProducer:
    """A producer for asyncio, configured with Kafka's options.

    A `cluster` passed in is not closed. `partitioner` is called for every record without a partition.
    """

    def __init__(
        self,
        options: Mapping[str, object],
        *,
        partitioner: Partitioner | None = None,
        cluster: Cluster | None = None,
        clock: Clock | None = None,
        random: Random | None = None,
    ) -> None:
        values = client_values(options, PRODUCER_OPTIONS)
        self._settings = settings = producer_settings(values, options)
        self._owns_cluster = cluster is None
        self._cluster = open_cluster(values) if cluster is None else cluster
        self._clock = clock or SystemClock()
        self._random = random or Random()
        self._partitioner = partitioner or (RoundRobin() if settings.round_robin else None)
        self._accumulator = Accumulator(
            batch_bytes=settings.batch_bytes, linger_s=settings.linger_s, delivery_s=settings.delivery_s
        )
        self._sticky = Sticky(
            self._random, batch_bytes=settings.batch_bytes, adaptive=settings.adaptive, loads=self._loads
        )
        self._sequences = (
            Sequences(transactional=settings.transactional_id is not None) if settings.idempotent else None
        )
        self._transaction = (
            TransactionSession(settings, self._cluster, self._sequences)
            if settings.transactional_id is not None and self._sequences is not None
            else None
        )
        self._space = BufferSpace(settings.buffer_bytes, self._wake)
        self._counts = TopicCounts(self._cluster, settings, self._random)
        self._sender: Sender | None = None
        self._task: asyncio.Task[None] | None = None
        self._metrics: ProducerMetrics | None = None
        self._closed: Exception | None = None

    async def __aenter__(self) -> AsyncProducer:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        await self.close(None if kind is None else EXIT_S_MAX)

    async def start(self) -> None:
        """Start sending in the background. No broker is contacted yet, so brokers may come up later."""
        assert self._task is None, "it is started already"
        loop = asyncio.get_running_loop()
        self._metrics = metrics = ProducerMetrics(loop.time)
        context = ProducerContext(
            settings=self._settings,
            cluster=self._cluster,
            accumulator=self._accumulator,
            sequences=self._sequences,
            transaction=self._transaction,
            metrics=metrics,
            random=self._random,
            now=loop.time,
            release=self._space.give,
        )
        self._sender = sender = Sender(context, in_hurry=lambda: self._space.waiters > 0, topics=self._counts.topics)
        if self._transaction is not None:
            self._transaction.outbox = sender
        metrics.all.gauge("buffer-total-bytes", lambda: self._space.total)
        metrics.all.gauge("buffer-available-bytes", lambda: self._space.available)
        metrics.all.gauge("waiting-threads", lambda: self._space.waiters)
        metrics.all.gauge("requests-in-flight", lambda: sender.requests_in_flight)
        self._task = loop.create_task(sender.run())
        self._task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Fail all pending deliveries and waiting callers when the sender has ended, even if a bug ended it."""
        error = None if task.cancelled() else task.exception()
        self._stop(ProducerClosed("the producer is closed" if error is None else f"the producer has failed: {error!r}"))

    def _stop(self, error: ProducerClosed) -> None:
        self._closed = self._closed or error
        self._space.close(self._closed)
        for batch in list(self._accumulator.incomplete):
            if not batch.is_done:
                batch.refuse(self._closed)
            self._accumulator.complete(batch)
        if self._sender is not None:
            self._sender.stopped()

    @property
    def transaction(self) -> TransactionSession:
        """Return the session for transactions. Raise KafkaError if no transactional.id is set."""
        if self._transaction is None:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "there is no transactional.id")
        return self._transaction

    @property
    def block_s(self) -> float:
        """Return max.block.ms in seconds."""
        return self._settings.block_s

    def metrics(self) -> dict[str, float]:
        """Return the metrics by Kafka's names; none before `start`.

        Rates are per second, times in milliseconds. Rates, averages and maxima cover at most the last minute; averages
        and maxima without a value are NaN.
        """
        return {} if self._metrics is None else self._metrics.all.read()

    async def partitions_for(self, topic: str) -> list[int]:
        """Return the topic's partitions, waiting up to max.block.ms; a missing topic is created if brokers do that."""
        return list(range(await self._counts.count(topic)))

    # --- records

    async def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        partition: int | None = None,
        timestamp_ms: int | None = None,
        headers: Iterable[tuple[str, bytes | None]] = (),
    ) -> asyncio.Future[Sent]:
        """Add a record to the buffer and return a future for its delivery.

        Wait up to max.block.ms for the topic's metadata and for buffer space. Raise BufferFull if there is no space in
        time, TypeError or ValueError if an argument cannot be sent.
        """
        some = check_record(topic, value, key, partition, timestamp_ms, headers)
        sender = self._check()
        count = await self._counts.count(topic)
        size = record_bytes(key, value, some)
        if size + HEADER_BYTES > self._settings.request_bytes_max:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"{topic}: a record of {size} bytes; max.request.size is {self._settings.request_bytes_max}",
            )
        if not self._space.try_take(size):
            await self._wait_for_space(size)
        self._check()
        index = partition if partition is not None else self._choose(topic, key, value, count)
        sticks = index is None
        if index is None:
            index = self._sticky.partition(topic, count)
        try:
            self._check_partition(topic, index, count)
            where = TopicPartition(topic, index)
            loop = asyncio.get_running_loop()
            delivery = RecordDelivery(loop.create_future())
            time_ms = self._clock.now_ms() if timestamp_ms is None else timestamp_ms
            is_ready = self._accumulator.append(where, time_ms, key, value, some, delivery, size=size, now=loop.time())
        except BaseException:
            self._space.give(size)
            raise
        if is_ready:
            sender.wake()
        is_full = self._accumulator.has_closed(where)
        if sticks:
            self._sticky.add(topic, index, size, count, is_full=is_full)
        if is_full:
            await asyncio.sleep(0)  # let the sender run, even if the caller never waits
        return delivery.future

    def _choose(self, topic: str, key: bytes | None, value: bytes | None, count: int) -> int | None:
        if self._partitioner is not None:
            return self._partitioner(topic, key, value, count)
        return None if key is None or self._settings.ignore_keys else partition_for_key(key, count)

    def _check_partition(self, topic: str, index: int, count: int) -> None:
        if not 0 <= index < count:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{topic} has partitions 0 to {count - 1}, not {index}"
            )

    def _loads(self, topic: str, partitions: int) -> list[int]:
        lengths = self._accumulator.queue_lengths(topic, partitions)
        known = self._cluster.known_leader
        return [-1 if known(TopicPartition(topic, index)) is None else length for index, length in enumerate(lengths)]

    # --- rows

    async def send_batch(
        self, topic: str, rows: pa.RecordBatch | pa.Table, *, partition: int | None = None
    ) -> asyncio.Future[list[SentRange]]:
        """Add Arrow rows to the buffer and return a future with the offset ranges they were written to.

        The columns are key, value, headers, timestamp, and `partition` for rows with a fixed partition; all are
        optional. They are encoded by the kernel.

        Return when all rows are in the buffer; if they do not fit, wait up to max.block.ms for each batch. If this
        raises an error, some rows may have been sent, but not all.
        """
        from headrace.client.producer.arrow_rows import by_partition, record_batches, records_of

        self._check()
        count = await self._counts.count(topic)
        if partition is not None:
            self._check_partition(topic, partition, count)
        delivery = RowsDelivery(asyncio.get_running_loop().create_future())
        for batch in record_batches(rows):
            if partition is not None:
                await self._send_rows(topic, records_of(batch), partition, count, delivery)
                continue
            by_key = not self._settings.ignore_keys
            for index, some in by_partition(batch, count, by_key=by_key, custom=self._partitioner, topic=topic):
                await self._send_rows(topic, some, index, count, delivery)
        delivery.all_in()
        return delivery.future

    async def _send_rows(
        self, topic: str, rows: pa.RecordBatch, partition: int | None, count: int, delivery: RowsDelivery
    ) -> None:
        from headrace.records.columns import encode_batches

        sender, settings = self._check(), self._settings
        bytes_max = min(settings.arrow_batch_bytes, sender.outcomes.bytes_max.get(topic, settings.arrow_batch_bytes))
        left, row_bytes = rows.num_rows, rows.nbytes / rows.num_rows + ROW_OVERHEAD_BYTES
        batches = encode_batches(
            rows,
            batch_bytes_max=bytes_max,
            now_ms=self._clock.now_ms(),
            codec=settings.codec,
            level=settings.level,
            transactional=self._transaction is not None,
        )
        while left:
            reserved_bytes = min(bytes_max, HEADER_BYTES + int(left * row_bytes))
            if not self._space.try_take(reserved_bytes):
                await self._wait_for_space(reserved_bytes)
            try:
                encoded = await self._encode(batches, reserved_bytes)
                self._check()
            except BaseException:
                self._space.give(reserved_bytes)
                raise
            left -= encoded.rows
            self._append_rows(topic, encoded, reserved_bytes, partition, count, delivery)
            sender.wake()
            await asyncio.sleep(0)

    async def _encode(self, batches: Iterator[EncodedBatch], reserved_bytes: int) -> EncodedBatch:
        if self._settings.codec is not Codec.NONE and reserved_bytes >= OFF_LOOP_BYTES_MIN:
            encoded = await asyncio.to_thread(next, batches)
        else:
            encoded = next(batches)
        if len(encoded.batch) > self._settings.request_bytes_max:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"a batch of {encoded.rows} row(s) has {len(encoded.batch)} bytes; max.request.size is {self._settings.request_bytes_max}",
            )
        return encoded

    def _append_rows(
        self,
        topic: str,
        encoded: EncodedBatch,
        reserved_bytes: int,
        partition: int | None,
        count: int,
        delivery: RowsDelivery,
    ) -> None:
        size = len(encoded.batch)
        if self._settings.codec is Codec.NONE and size < reserved_bytes:
            self._space.give(reserved_bytes - size)
            reserved_bytes = size
        index = self._sticky.partition(topic, count) if partition is None else partition
        delivery.expect(encoded.rows)
        self._accumulator.append_encoded(
            TopicPartition(topic, index),
            encoded.batch,
            Entry(delivery, encoded.rows, -1),
            plain_bytes=max(size, reserved_bytes),
            reserved=reserved_bytes,
            now=asyncio.get_running_loop().time(),
        )
        if partition is None:
            self._sticky.add(topic, index, size, count, is_full=True)

    # --- waiting

    def _wake(self) -> None:
        if self._sender is not None:
            self._sender.wake()

    def _check(self) -> Sender:
        if self._closed is not None:
            raise self._closed
        if self._sender is None:
            raise ProducerClosed("the producer is not started")
        if self._transaction is not None:
            self._transaction.check_send()
        return self._sender

    async def _wait_for_space(self, size: int) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            await self._space.take(size, self._settings.block_s)
        finally:
            assert self._metrics is not None
            self._metrics.waited.record((loop.time() - begun) * 1000)

    async def flush(self) -> None:
        """Wait until everything sent so far is delivered or has failed; the futures hold the outcomes."""
        if self._closed is None and self._sender is not None:
            await self._sender.flush()

    async def close(self, timeout_s: float | None = None) -> None:
        """Abort an open transaction, send what is buffered, and close.

        This takes at most `timeout_s` (None: as long as delivery.timeout.ms allows). A prepared transaction stays
        prepared. Records not sent by then fail with ProducerClosed.
        """
        if self._task is not None and self._closed is None:
            try:
                async with asyncio.timeout(timeout_s):
                    await self._finish()
            except (HeadraceError, TimeoutError):
                pass  # the deliveries hold their outcomes, and the transaction timeout ends an open transaction
        if self._transaction is not None:
            await self._transaction.close()
        self._stop(ProducerClosed("the producer is closed"))
        if self._task is not None:
            await end_tasks([self._task])
        if self._owns_cluster:
            await self._cluster.close()

    async def _finish(self) -> None:
        transaction = self._transaction
        open_states = (TransactionState.OPEN, TransactionState.FAILED, TransactionState.ABORTING)
        if transaction is not None and transaction.state in open_states:
            await transaction.abort()
        await self.flush()

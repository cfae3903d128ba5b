"""Sends batches to their leaders: one request holds one batch of each partition, and several are in flight at once.

One loop makes all decisions and is woken by every event. Slow work (connecting, metadata, a producer id, compressing
much data) runs in background tasks that wake it when done. So nothing comes between taking a batch from its queue and
writing it: the order on the wire is the order of the queues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from headrace.base.errors import ErrorCode, HeadraceError, KafkaError
from headrace.base.ids import TopicPartition
from headrace.client.background_tasks import NEVER, BackgroundTasks
from headrace.client.producer.batches import NO_PRODUCER, ProducerBatch, ProducerIdentity
from headrace.client.producer.outcomes import Outcomes, ProducerContext, error_code
from headrace.client.producer.requests import BEFORE_IMPLICIT_ADD_VERSION, Prepared, pair_responses, prepare
from headrace.client.wire.connection import Connection
from headrace.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from headrace.protocol.messages.produce import ProduceRequest, ProduceResponse
from headrace.records.compression import Codec

PURPOSE = "produce"  # a separate connection: metadata must not wait for acks
OFF_LOOP_BYTES_MIN = 64 * 1024  # compressing more than this would block the event loop
_NOT_AGAIN = frozenset(
    {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.INVALID_TOPIC_EXCEPTION,
        ErrorCode.SASL_AUTHENTICATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)


class _Request:
    __slots__ = ("connection", "prepared", "sent_at")

    def __init__(self, connection: Connection, prepared: Prepared, sent_at: float) -> None:
        self.connection = connection
        self.prepared = prepared
        self.sent_at = sent_at


class _Link:
    """State of the connection to one broker."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.connection: Connection | None = None
        self.is_busy = False  # connecting, or waiting for the socket
        self.failures = 0
        self.quiet_until = 0.0  # backoff after a failure, or throttled by the broker
        self.requests: dict[_Request, None] = {}


class Sender:
    """The loop that sends batches: `run` it until it is cancelled, and `wake` it after appending.

    `topics` are all topics that records were sent to.
    """

    def __init__(self, context: ProducerContext, *, in_hurry: Callable[[], bool], topics: set[str]) -> None:
        self._settings = context.settings
        self._cluster = context.cluster
        self._accumulator = context.accumulator
        self._sequences = context.sequences
        self._transaction = context.transaction
        self._metrics = context.metrics
        self._random = context.random
        self._now = context.now
        self._in_hurry = in_hurry
        self._topics = topics
        self._flushes = 0
        self.outcomes = Outcomes(context)
        self._links: dict[int, _Link] = {}
        self._awake = asyncio.Event()
        self._background = BackgroundTasks(
            context.settings.retry_backoff, random=context.random, now=context.now, wake=self.wake
        )
        self._building: set[TopicPartition] = set()
        self._compressions = 0
        self._refreshed_at = self._now()
        self._changed = asyncio.Event()
        self._fault: Exception | None = None

    @property
    def requests_in_flight(self) -> int:
        return sum(len(link.requests) for link in self._links.values())

    def wake(self) -> None:
        self._awake.set()

    def stopped(self) -> None:
        """Wake callers of `flush`, because all batches have been given up."""
        self._changed.set()

    async def flush(self) -> None:
        """Wait until everything appended so far is answered or given up, at the latest after delivery.timeout.ms."""
        last = self._accumulator.last_number
        self._flushes += 1
        self.wake()
        try:
            while self._accumulator.has_up_to(last):
                self._changed.clear()
                await self._changed.wait()
        finally:
            self._flushes -= 1

    async def give_up_all(self, error: Exception) -> None:
        """Give up what is not on the wire, and wait until the rest is answered, at most request.timeout.ms."""
        self.drop(error)
        await self.flush()

    async def run(self) -> None:
        try:
            while True:
                self._awake.clear()
                soonest = await self._step()
                self._changed.set()
                if self._awake.is_set():
                    await asyncio.sleep(0)
                    continue
                delay = max(0.0, soonest - self._now())
                timer = asyncio.get_running_loop().call_later(delay, self.wake) if delay < NEVER else None
                await self._awake.wait()
                if timer is not None:
                    timer.cancel()
        finally:
            await self._background.stop()

    async def _step(self) -> float:
        """Do all that can be done now, and return when to look again if nothing happens."""
        if self._fault is not None:
            raise self._fault
        now = self._now()
        self._accumulator.hurry = self._flushes > 0 or self._in_hurry()
        self.outcomes.expire_queued(now)
        if self._transaction is not None and self._transaction.error is not None:
            self.drop(self._transaction.error)
        soonest = self._refresh_if_old(now)
        if self._sequences is not None and self._accumulator.incomplete:
            used_up = self._sequences.settle()
            if (used_up or self._sequences.identity == NO_PRODUCER) and self._transaction is None:
                soonest = min(soonest, self._background.start_once("producer id", self._identify))
        waiting: dict[int, list[tuple[float, TopicPartition]]] = {}
        unknown: set[str] = set()
        for partition in self._accumulator.partitions():
            ready_at = self._accumulator.ready_at(partition)
            if ready_at > now:
                soonest = min(soonest, ready_at)
            elif (batch := self._accumulator.head(partition)) is None or not self._admits(batch):
                continue
            elif (leader := self._cluster.known_leader(partition)) is None:
                unknown.add(partition.topic)
            else:
                waiting.setdefault(leader, []).append((batch.created_at, partition))
        if unknown:
            soonest = min(
                soonest, self._background.start_once("metadata", lambda: self._refresh(sorted(unknown), create=True))
            )
        for node_id, heads in waiting.items():
            link = self._links.get(node_id)
            if link is None:
                link = self._links[node_id] = _Link(node_id)
            soonest = min(soonest, self._serve(link, [partition for _, partition in sorted(heads)], now))
        return min(soonest, await self._watch_requests(now), self._accumulator.next_deadline())

    def _admits(self, batch: ProducerBatch) -> bool:
        partition = batch.partition
        if partition in self._building or (self._settings.in_flight_max == 1 and partition in self._on_wire()):
            return False  # one at a time, so that the order is kept even if the leader changes
        if self._transaction is not None and not self._transaction.admits(batch):
            return False
        return self._sequences is None or self._sequences.admits(batch)

    def _on_wire(self) -> set[TopicPartition]:
        links = self._links.values()
        return {batch.partition for link in links for one in link.requests for batch in one.prepared.by_key.values()}

    def _refresh_if_old(self, now: float) -> float:
        """Refresh metadata after metadata.max.age.ms, in case topics have changed; return when to look again."""
        due = self._refreshed_at + self._settings.metadata_age_s
        if not self._topics:
            return NEVER
        return (
            due if now < due else self._background.start_once("metadata", lambda: self._refresh(sorted(self._topics)))
        )

    # --- requests

    def _serve(self, link: _Link, partitions: list[TopicPartition], now: float) -> float:
        """Send as many requests to this broker as allowed, oldest batches first; return when to look again."""
        if link.is_busy or len(link.requests) >= self._settings.in_flight_max:
            return NEVER
        if now < link.quiet_until:
            return link.quiet_until
        connection = link.connection
        if connection is None or not connection.is_open:
            link.is_busy = True
            self._background.start(f"broker {link.node_id}", lambda: self._connect(link))
            return NEVER
        if self._settings.acks == 0 and not connection.is_writable:
            link.is_busy = True
            self._background.start(f"broker {link.node_id}", lambda: self._wait_for_socket(link, connection))
            return NEVER
        while len(link.requests) < self._settings.in_flight_max:
            batches = self._accumulator.drain(
                self._build(partitions), bytes_max=self._settings.request_bytes_max, admits=self._admits
            )
            if not batches or not self._send(link, connection, batches, now):
                break
            if self._settings.acks == 0 and not connection.is_writable:
                self.wake()
                break
            partitions = [one for one in partitions if self._accumulator.ready_at(one) <= now]
        return NEVER

    def _build(self, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Return the partitions whose first batch is built; compress large amounts in the background."""
        settings = self._settings
        heads = [self._accumulator.head(partition) for partition in partitions if partition not in self._building]
        open_heads = [batch for batch in heads if batch is not None and batch.encoded is None]
        if settings.codec is not Codec.NONE and sum(batch.size for batch in open_heads) >= OFF_LOOP_BYTES_MIN:
            for batch in open_heads:
                batch.is_closed = True
                self._building.add(batch.partition)
            self._compressions += 1
            self._background.start(f"compression {self._compressions}", lambda: self._build_in_background(open_heads))
        else:
            for batch in open_heads:
                batch.build(settings.codec, settings.level, self._transaction is not None)
        return [partition for partition in partitions if partition not in self._building]

    async def _build_in_background(self, batches: list[ProducerBatch]) -> None:
        def build() -> None:
            for batch in batches:
                batch.build(self._settings.codec, self._settings.level, self._transaction is not None)

        await asyncio.to_thread(build)
        self._building -= {batch.partition for batch in batches}

    def _send(self, link: _Link, connection: Connection, batches: list[ProducerBatch], now: float) -> bool:
        """Send a request with these batches; return False if the connection is lost."""
        settings, transaction = self._settings, self._transaction
        for batch in batches:
            if self._sequences is not None:
                self._sequences.assign(batch)
        implicit = transaction is None or transaction.is_implicit
        version = connection.version_for(ProduceRequest, None if implicit else BEFORE_IMPLICIT_ADD_VERSION)
        prepared = prepare(
            batches,
            version,
            self._cluster.topic_id,
            acks=settings.acks,
            timeout_ms=int(settings.request_s * 1000),
            transactional_id=None if transaction is None else transaction.transactional_id,
        )
        for batch in batches:
            batch.attempts += 1
            self._measure(batch, now)
        request = _Request(connection, prepared, now)
        self._metrics.requests.record()
        self._metrics.records_per_request.record(sum(batch.count for batch in batches))
        try:
            if settings.acks == 0:
                connection.send_without_response(prepared.request, version)
                for batch in batches:
                    self.outcomes.complete_unacknowledged(batch)
                return True
            future = connection.send(prepared.request, version)
        except HeadraceError as error:
            self._lost(link, request, error)
            return False
        link.requests[request] = None
        future.add_done_callback(lambda done: self._request_done(link, request, done))
        return True

    def _measure(self, batch: ProducerBatch, now: float) -> None:
        if batch.attempts > 1:
            return
        metrics = self._metrics
        metrics.records.record(batch.count)
        metrics.bytes.record(batch.size)
        metrics.batch_size.record(batch.size)
        metrics.record_size.record(batch.plain_bytes, batch.count)
        metrics.compression.record(batch.size / batch.plain_bytes if batch.plain_bytes else 1.0)
        metrics.queue_time.record((now - batch.created_at) * 1000)

    def _request_done(self, link: _Link, request: _Request, done: asyncio.Future[Any]) -> None:
        link.requests.pop(request, None)
        self.wake()
        try:
            self._handle_response(link, request, done)
        except Exception as error:  # our own bug: end the loop with it, rather than let callers wait forever
            self._fault = error

    def _handle_response(self, link: _Link, request: _Request, done: asyncio.Future[Any]) -> None:
        error = asyncio.CancelledError() if done.cancelled() else done.exception()
        if error is not None:
            self._lost(link, request, error)
            return
        response: ProduceResponse = done.result()
        now = self._now()
        link.failures = 0
        if response.throttle_time_ms > 0:
            link.quiet_until = now + response.throttle_time_ms / 1000
        self._metrics.throttled.record(response.throttle_time_ms)
        self._metrics.latency.record((now - request.sent_at) * 1000)
        for batch, partition_response in pair_responses(request.prepared, response):
            self.outcomes.handle_response(batch, partition_response)

    def _lost(self, link: _Link, request: _Request, error: BaseException) -> None:
        if link.connection is request.connection:
            link.connection = None
            self._failed(link)
        for batch in request.prepared.by_key.values():
            self.outcomes.lost(batch, str(error))

    def _failed(self, link: _Link) -> None:
        link.failures += 1
        pause_s = self._settings.reconnect_backoff.pause_s(link.failures, self._random)
        link.quiet_until = max(link.quiet_until, self._now() + pause_s)

    async def _watch_requests(self, now: float) -> float:
        """Close connections that time out, fail expired batches in flight, and return when to look again."""
        soonest = NEVER
        for link in self._links.values():
            if not link.requests:
                continue
            oldest = next(iter(link.requests))
            if oldest.sent_at + self._settings.request_s <= now:
                await oldest.connection.close()  # which fails all its requests
            else:
                soonest = min(soonest, oldest.sent_at + self._settings.request_s)
            for request in link.requests:
                for batch in request.prepared.by_key.values():
                    if batch.deadline <= now and not batch.is_done:
                        self.outcomes.expire_on_wire(batch)
                    elif not batch.is_done:
                        soonest = min(soonest, batch.deadline)
        return soonest

    # --- background tasks

    async def _connect(self, link: _Link) -> None:
        try:
            connection = await self._cluster.broker(link.node_id, PURPOSE)
            connection.version_for(ProduceRequest)  # raises UnexpectedResponse if the broker does not support it
            link.connection = connection
        except (HeadraceError, OSError) as error:
            self._failed(link)
            self._give_up_if_hopeless(error, None)
            for partition in self._accumulator.partitions():
                if self._cluster.known_leader(partition) == link.node_id:
                    self._cluster.forget_leader(partition)
        finally:
            link.is_busy = False

    async def _wait_for_socket(self, link: _Link, connection: Connection) -> None:
        try:
            async with asyncio.timeout(self._settings.request_s):
                await connection.drained()
        except TimeoutError:
            await connection.close()
        finally:
            link.is_busy = False

    async def _refresh(self, topics: list[str], *, create: bool = False) -> None:
        failed = True
        try:
            response = await self._cluster.refresh(topics, create=create)
            self._refreshed_at = self._now()
            failed = False
            for topic in response.topics:
                code = error_code(topic.error_code)
                if code is not ErrorCode.NONE:
                    failed = True
                    self._give_up_if_hopeless(KafkaError(code, f"topic {topic.name}"), topic.name)
        except (HeadraceError, OSError) as error:
            self._give_up_if_hopeless(error, None)
        finally:
            self._background.delay("metadata", failed)

    async def _identify(self) -> None:
        assert self._sequences is not None
        failed = True
        try:
            response: InitProducerIdResponse = await self._cluster.request(InitProducerIdRequest(transactional_id=None))
            code = error_code(response.error_code)
            if code is ErrorCode.NONE:
                failed = False
                self._sequences.next_epoch(ProducerIdentity(response.producer_id, response.producer_epoch))
            else:
                self._give_up_if_hopeless(KafkaError(code, "no producer id was given"), None)
        except (HeadraceError, OSError) as error:
            self._give_up_if_hopeless(error, None)
        finally:
            self._background.delay("producer id", failed)

    def _give_up_if_hopeless(self, error: Exception, topic: str | None) -> None:
        if isinstance(error, KafkaError) and error.code in _NOT_AGAIN:
            self.drop(error, topic)

    def drop(self, error: Exception, topic: str | None = None) -> None:
        """Give up all queued batches, or those of a topic."""
        for batch in self._accumulator.take_all(topic):
            self.outcomes.give_up(batch, error, written=None)

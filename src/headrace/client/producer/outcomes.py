"""Decides what happens to a batch after a response or without one: deliver, retry after a pause, split, or give up."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple, Protocol

from headrace.base.errors import RETRIABLE, ErrorCode, KafkaError
from headrace.client.producer.accumulator import Accumulator
from headrace.client.producer.batches import ProducerBatch, split
from headrace.client.producer.metrics import ProducerMetrics
from headrace.client.producer.options import ProducerSettings
from headrace.client.producer.requests import reason
from headrace.client.producer.sequences import Sequences, Verdict
from headrace.client.wire.cluster import Cluster
from headrace.protocol.messages.produce import ProduceResponse

# Errors after which the known leader is in doubt.
_LEADER_IN_DOUBT = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.NETWORK_EXCEPTION,
    }
)


class Transaction(Protocol):
    """A transaction, as the sender sees it."""

    @property
    def transactional_id(self) -> str: ...

    @property
    def is_implicit(self) -> bool:
        """Return whether batches add their partitions to the transaction themselves."""
        ...

    @property
    def error(self) -> KafkaError | None:
        """Return why the transaction can no longer be committed, or None."""
        ...

    def admits(self, batch: ProducerBatch) -> bool: ...

    def batch_failed(self, error: KafkaError, *, in_doubt: bool) -> None: ...


def error_code(number: int) -> ErrorCode:
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


class ProducerContext(NamedTuple):
    """The state of one producer that sending a batch and handling its outcome share."""

    settings: ProducerSettings
    cluster: Cluster
    accumulator: Accumulator
    sequences: Sequences | None  # None: the producer is not idempotent
    transaction: Transaction | None  # None: the producer is not transactional
    metrics: ProducerMetrics
    random: Random
    now: Callable[[], float]
    release: Callable[[int], None]  # called with the bytes of buffer.memory that a batch held


class Outcomes:
    """Applies the outcomes of batches."""

    def __init__(self, context: ProducerContext) -> None:
        self._settings = context.settings
        self._cluster = context.cluster
        self._accumulator = context.accumulator
        self._sequences = context.sequences
        self._transaction = context.transaction
        self._metrics = context.metrics
        self._random = context.random
        self._now = context.now
        self._release = context.release
        # Largest batch in bytes, before compression, of topics that refused one of twice the size.
        self.bytes_max: dict[str, int] = {}

    def handle_response(
        self, batch: ProducerBatch, partition_response: ProduceResponse.PartitionProduceResponse | None
    ) -> None:
        if partition_response is None:
            self.lost(batch, "the broker's response does not contain the batch")
            return
        self._returned(batch)
        code = error_code(partition_response.error_code)
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self._succeed(batch, partition_response.base_offset, partition_response.log_append_time_ms)
        elif code is ErrorCode.MESSAGE_TOO_LARGE and batch.count > 1 and not batch.is_done:
            self._split(batch)
        else:
            self._refused(batch, code, reason(partition_response), partition_response.log_start_offset)

    def complete_unacknowledged(self, batch: ProducerBatch) -> None:
        """Complete a batch with acks=0: it was sent, and there is no response."""
        self._succeed(batch, -1, -1)

    def lost(self, batch: ProducerBatch, why: str) -> None:
        """Handle a missing response: the batch may or may not have been written."""
        self._returned(batch)
        self._refused(batch, ErrorCode.NETWORK_EXCEPTION, why, -1)

    def _returned(self, batch: ProducerBatch) -> None:
        if self._sequences is not None:
            self._sequences.returned(batch)

    def _succeed(self, batch: ProducerBatch, base_offset: int, append_time_ms: int) -> None:
        if self._sequences is not None:
            self._sequences.acknowledged(batch, base_offset)
        if not batch.is_done:
            batch.deliver(base_offset, append_time_ms)
        self._complete(batch)

    def _refused(self, batch: ProducerBatch, code: ErrorCode, why: str, log_start_offset: int) -> None:
        if self._sequences is not None:
            verdict = self._sequences.judge(batch, code, log_start_offset)
        else:
            verdict = Verdict.RETRY if code in RETRIABLE else Verdict.FAIL
        if code in _LEADER_IN_DOUBT:
            self._cluster.forget_leader(batch.partition)
        now = self._now()
        batch.trouble = f"{code.name}: {why}" if why else code.name
        tries_left = batch.attempts <= self._settings.retries
        if verdict is Verdict.RETRY and not batch.is_done and tries_left and now < batch.deadline:
            batch.retry_at = now + self._settings.retry_backoff.pause_s(batch.attempts, self._random)
            self._metrics.retries.record(batch.count)
            self._accumulator.put_back(batch)
            return
        if verdict is Verdict.RETRY and now >= batch.deadline:
            self.give_up(batch, self._too_late(batch), written=None)
        else:
            message = f"{batch.partition}: {why}" if why else str(batch.partition)
            self.give_up(batch, KafkaError(code, message), written=False if verdict is Verdict.FAIL else None)

    def _split(self, batch: ProducerBatch) -> None:
        topic, settings = batch.partition.topic, self._settings
        self.bytes_max[topic] = min(batch.plain_bytes // 2, self.bytes_max.get(topic, batch.plain_bytes))
        pieces = split(batch, settings.codec, settings.level, self._transaction is not None)
        if self._sequences is not None:
            self._sequences.replaced(batch, pieces)
        self._accumulator.replace(batch, pieces)
        self._metrics.splits.record()

    def _too_late(self, batch: ProducerBatch) -> KafkaError:
        sent = f"; sent {batch.attempts} time(s), the last trouble was {batch.trouble}" if batch.trouble else ""
        return KafkaError(
            ErrorCode.REQUEST_TIMED_OUT,
            f"{batch.count} record(s) for {batch.partition} within {self._settings.delivery_s:g} s (delivery.timeout.ms){sent}",
        )

    def expire_queued(self, now: float) -> None:
        for batch in self._accumulator.take_expired(now):
            self.give_up(batch, self._too_late(batch), written=None)

    def expire_on_wire(self, batch: ProducerBatch) -> None:
        """Fail the delivery now; the sequence stays in use until the response arrives or the connection is lost."""
        error = self._too_late(batch)
        self._metrics.errors.record(batch.count)
        if self._transaction is not None:
            self._transaction.batch_failed(error, in_doubt=True)
        batch.refuse(error)

    def give_up(self, batch: ProducerBatch, error: Exception, *, written: bool | None) -> None:
        """Fail a batch that is neither queued nor on the wire."""
        if self._sequences is not None:
            self._sequences.failed(batch, written=written)
        if not batch.is_done:
            self._metrics.errors.record(batch.count)
            batch.refuse(error)
        self._complete(batch)
        if self._transaction is not None and isinstance(error, KafkaError):
            self._transaction.batch_failed(error, in_doubt=batch.has_sequence)

    def _complete(self, batch: ProducerBatch) -> None:
        self._accumulator.complete(batch)
        self._release(batch.reserved)

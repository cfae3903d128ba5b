"""InitProducerId 0–6 for a transactional id: gives the producer its id and epoch and fences all earlier producers.

An open transaction is aborted first, at an epoch that no producer gets; the producer has to retry and gets the epoch after it. A producer
that continues after an error sends its id and epoch (KIP-360) and is refused if another producer was initialized in the meantime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.base.errors import ErrorCode, KafkaError
from headrace.coordinators.transaction.ending import fence, refuse_when_committed
from headrace.coordinators.transaction.fencing import EpochCause, fenced
from headrace.coordinators.transaction.request import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    InitProducer,
    ProducerIdNeeded,
    ProducerInitialized,
)
from headrace.coordinators.transaction.state import (
    EPOCH_LAST,
    NO_TIME,
    TWO_PHASE_TIMEOUT_MS,
    Transaction,
)
from headrace.coordinators.transaction.states import PREPARED, State

if TYPE_CHECKING:
    from headrace.coordinators.transaction.shard import TransactionShard, Tx

KEEPING_VERSION_MIN = 2  # transaction version; the producer of a kept transaction is only stored in tagged fields

Producer = tuple[int, int]  # id and epoch


def init_producer(shard: TransactionShard, request: InitProducer, now_ms: int, tx: Tx) -> None:
    expected = _check(shard, request)
    name = request.transactional_id
    timeout_ms = TWO_PHASE_TIMEOUT_MS if request.enable_two_phase_commit else request.timeout_ms
    old = shard.tables.all.get(name)
    if old is None:
        # Also for a producer that sends its identity: its transactional id has expired, so no other producer can conflict.
        producer, last_epoch = (_fresh(request), 0), NO_EPOCH
    else:
        if old.state in PREPARED:
            raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
        if expected is not None and not _may_be(expected, old):
            raise fenced(request)
        if old.state is State.ONGOING:
            _init_over_ongoing(shard, request, expected, old, now_ms, tx)
            return
        producer, last_epoch = _next(request, expected, old, shard.tables.last_epochs.get(name))
    shard.tables.remember_epoch(name, last_epoch, EpochCause.INIT)
    new = (old or Transaction(*producer, timeout_ms)).replace(
        producer_id=producer[0],
        producer_epoch=producer[1],
        timeout_ms=timeout_ms,
        state=State.EMPTY,
        started_ms=NO_TIME,
        updated_ms=now_ms,
    )
    shard.change(name, old, new, tx)
    tx.reply(tx.ticket, ProducerInitialized(*producer))


def _check(shard: TransactionShard, request: InitProducer) -> Producer | None:
    """Validate the request; return the identity that the producer claims, if any."""
    settings = shard.settings
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_EPOCH):
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    two_phase = request.enable_two_phase_commit or request.keep_prepared
    if two_phase and not settings.transaction_two_phase_commit_enable:
        raise KafkaError(ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
    if request.keep_prepared and request.producer_id != NO_PRODUCER_ID:
        raise KafkaError(ErrorCode.INVALID_REQUEST)
    if request.keep_prepared and shard.transaction_version() < KEEPING_VERSION_MIN:
        raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
    if not request.enable_two_phase_commit and not 0 < request.timeout_ms <= settings.transaction_max_timeout_ms:
        raise KafkaError(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
    return None if request.producer_id == NO_PRODUCER_ID else (request.producer_id, request.producer_epoch)


def _may_be(expected: Producer, old: Transaction) -> bool:
    """Return whether the claimed id is the current one, or the previous one if that had no epochs left."""
    producer_id, epoch = expected
    return producer_id == old.client[0] or (producer_id == old.previous_producer_id and epoch >= EPOCH_LAST)


def _next(
    request: InitProducer, expected: Producer | None, old: Transaction, last_epoch: int | None
) -> tuple[Producer, int]:
    """Return the producer's new identity, and the earlier epoch with which it may still retry."""
    had = old.producer_id, old.producer_epoch
    if expected is not None and expected != had:
        if expected[1] == last_epoch and old.producer_epoch <= EPOCH_LAST:
            return had, last_epoch  # a retry, because the response was lost
        raise fenced(request)
    producer = (_fresh(request), 0) if old.producer_epoch >= EPOCH_LAST else (old.producer_id, old.producer_epoch + 1)
    return producer, NO_EPOCH if expected is None else old.producer_epoch


def _init_over_ongoing(
    shard: TransactionShard,
    request: InitProducer,
    expected: Producer | None,
    old: Transaction,
    now_ms: int,
    tx: Tx,
) -> None:
    if expected is not None and expected != old.client:
        # Kafka aborts first and refuses afterwards, which lets a late zombie abort the transaction of its successor.
        raise fenced(request)
    if request.keep_prepared:
        _keep(shard, request, old, now_ms, tx)
        return
    fence(shard, request.transactional_id, old, EpochCause.INIT_OVER_ONGOING, now_ms, tx)
    refuse_when_committed(KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS), tx)


def _keep(shard: TransactionShard, request: InitProducer, old: Transaction, now_ms: int, tx: Tx) -> None:
    """Keep the transaction for the new producer to end; its markers must still be those of the old producer."""
    if not old.is_two_phase:
        raise KafkaError(ErrorCode.INVALID_TXN_STATE)
    producer_id, epoch = old.client
    producer_id, epoch = (_fresh(request), 0) if epoch >= EPOCH_LAST else (producer_id, epoch + 1)
    shard.tables.remember_epoch(request.transactional_id, NO_EPOCH, EpochCause.INIT_OVER_ONGOING)
    new = old.replace(next_producer_id=producer_id, next_producer_epoch=epoch, updated_ms=now_ms)
    shard.change(request.transactional_id, old, new, tx)
    tx.reply(tx.ticket, ProducerInitialized(producer_id, epoch, old.producer_id, old.producer_epoch))


def _fresh(request: InitProducer) -> int:
    if request.fresh_producer_id == NO_PRODUCER_ID:
        raise ProducerIdNeeded(request.transactional_id)
    return request.fresh_producer_id

"""EndTxn 0–5, and the completion of transactions that are decided.

The record of PREPARE_COMMIT or PREPARE_ABORT is the decision. Once it is committed, the response and the markers are sent. Each new
coordinator sends the markers again, until the shell reports that all are written.

Before transaction version 2 a producer keeps its epoch from one transaction to the next, and a repeated request is recognised by the
state alone. With version 2 every end moves the producer to the next epoch (KIP-890), or to a new id when epochs run out. If e is the
producer's current epoch ("again" repeats the earlier response):

    state            abort at e−1   abort at e     commit at e−1   commit at e
    Empty            fenced         abort nothing  fenced          invalid state
    Ongoing          fenced         abort          fenced          commit
    CompleteAbort    again          abort nothing  invalid state   invalid state
    CompleteCommit   invalid state  abort nothing  again           invalid state

While markers are being written (PrepareAbort, PrepareCommit) the response is CONCURRENT_TRANSACTIONS, whatever the producer id and epoch
are: the producer received its next epoch or id when the end was decided, so it may use them before the last marker is written. Checking
them then would fence a live producer.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from headrace.base.errors import ErrorCode, KafkaError
from headrace.coordinators.transaction.fencing import EpochCause, fenced
from headrace.coordinators.transaction.request import (
    NO_EPOCH,
    NO_PRODUCER_ID,
    EndTransaction,
    Markers,
    MarkersWritten,
    ProducerIdNeeded,
    TransactionEnded,
)
from headrace.coordinators.transaction.state import EPOCH_LAST, EPOCH_MAX, NO_PARTITIONS, Transaction
from headrace.coordinators.transaction.states import PREPARED, RESTING, State

if TYPE_CHECKING:
    from headrace.coordinators.transaction.shard import TransactionShard, Tx

INVALID_STATE = ErrorCode.INVALID_TXN_STATE
ENDS = {State.PREPARE_COMMIT: State.COMPLETE_COMMIT, State.PREPARE_ABORT: State.COMPLETE_ABORT}


# --- EndTxn


def end_transaction(shard: TransactionShard, request: EndTransaction, now_ms: int, tx: Tx) -> None:
    old = shard.tables.all.get(request.transactional_id)
    if old is None:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    bumps = shard.bumps_epochs(request.client_version)
    if bumps and old.state in PREPARED:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if (_is_repeated if bumps else _is_repeated_without_bump)(request, old):
        tx.reply(tx.ticket, TransactionEnded(old.producer_id, old.producer_epoch) if bumps else TransactionEnded())
        return
    new = _bumped(request, old) if bumps else old
    if bumps:
        shard.tables.remember_epoch(request.transactional_id, request.producer_epoch, EpochCause.END)
    new = new.replace(
        state=State.PREPARE_COMMIT if request.commit else State.PREPARE_ABORT,
        started_ms=now_ms if old.state in RESTING else old.started_ms,
        updated_ms=now_ms,
        client_version=request.client_version if bumps else 0,
    )
    new = shard.change(request.transactional_id, old, new, tx)
    _proceed(shard, request.transactional_id, new, now_ms, tx)
    tx.reply(tx.ticket, TransactionEnded(*new.successor) if bumps else TransactionEnded())


def _is_repeated_without_bump(request: EndTransaction, old: Transaction) -> bool:
    producer_id, epoch = old.client
    if request.producer_id != producer_id:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if request.producer_epoch != epoch or epoch == EPOCH_MAX:
        raise fenced(request)
    if old.state in PREPARED:
        raise KafkaError(ErrorCode.CONCURRENT_TRANSACTIONS)
    if old.state is State.ONGOING:
        return False
    _check_kind(request, old)
    return True


def _is_repeated(request: EndTransaction, old: Transaction) -> bool:
    """Return whether the request repeats an end that was decided. Raise KafkaError if it may not end the transaction.

    The state and the current epoch do not suffice: the next transaction has the same ones.
    """
    producer_id, epoch = old.client
    rotated = request.producer_id == old.previous_producer_id and request.producer_epoch == EPOCH_LAST and epoch == 0
    if request.producer_id != producer_id and not rotated:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    again = rotated or request.producer_epoch + 1 == epoch
    if again and old.state in ENDS.values():
        _check_kind(request, old)
        if epoch == EPOCH_MAX:
            raise fenced(request)  # timed out at its last epoch: no producer continues with this id (KAFKA-20090)
        return True
    if request.producer_epoch != epoch or epoch == EPOCH_MAX:
        raise fenced(request)
    if request.commit and old.state is not State.ONGOING:
        raise KafkaError(INVALID_STATE)
    return False


def _check_kind(request: EndTransaction, old: Transaction) -> None:
    """Raise KafkaError if the other outcome was decided or no transaction was started."""
    kinds = (
        (State.PREPARE_COMMIT, State.COMPLETE_COMMIT) if request.commit else (State.PREPARE_ABORT, State.COMPLETE_ABORT)
    )
    if old.state not in kinds:
        raise KafkaError(INVALID_STATE)


def _bumped(request: EndTransaction, old: Transaction) -> Transaction:
    """Return the transaction with its next epoch, which the markers carry.

    The producer continues with the same epoch, unless epochs run out or the transaction was kept for another producer.
    """
    producer_id, epoch = old.client
    next_producer_id, next_epoch = NO_PRODUCER_ID, NO_EPOCH
    if epoch >= EPOCH_LAST:
        next_producer_id, next_epoch = request.fresh_producer_id, 0 if old.is_kept else NO_EPOCH
        if next_producer_id == NO_PRODUCER_ID:
            raise ProducerIdNeeded(request.transactional_id)
    elif old.is_kept:
        next_producer_id, next_epoch = producer_id, epoch + 1
    return old.replace(
        producer_epoch=min(old.producer_epoch + 1, EPOCH_MAX),
        next_producer_id=next_producer_id,
        next_producer_epoch=next_epoch,
    )


# --- aborts that the producer did not request


def fence(shard: TransactionShard, name: str, old: Transaction, cause: EpochCause, now_ms: int, tx: Tx) -> None:
    """Abort an open transaction at an epoch that its producer does not have."""
    assert old.state is State.ONGOING
    shard.fencings.aborted(name, old, cause, now_ms)
    shard.tables.remember_epoch(name, NO_EPOCH, cause)
    bumped = old.producer_epoch < EPOCH_MAX
    new = old.replace(
        producer_epoch=old.producer_epoch + bumped,
        next_producer_epoch=min(old.next_producer_epoch + 1, EPOCH_MAX) if old.is_kept else NO_EPOCH,
        state=State.PREPARE_ABORT,
        updated_ms=now_ms,
        # With version 2, partitions refuse a marker at the epoch of the data. Kafka once gave producers the highest epoch.
        client_version=shard.transaction_version() if bumped else 0,
    )
    _proceed(shard, name, shard.change(name, old, new, tx), now_ms, tx)


def refuse_when_committed(error: KafkaError, tx: Tx) -> None:
    """Fail the request after its records are committed; raising the error would undo them."""
    tx.call(partial(tx.ticket.fail, error))


# --- markers


def begin_endings(shard: TransactionShard, tx: Tx) -> None:
    """Send the markers of all decided transactions again.

    This emits nothing, because a failure would not be retried. So even transactions without partitions go through the shell.
    """
    for name in shard.tables.prepared.keys():  # noqa: SIM118 -- a table, not a dict
        _send(shard, name, shard.tables.all[name], tx)


def on_markers_written(shard: TransactionShard, request: MarkersWritten, now_ms: int, tx: Tx) -> None:
    name = request.transactional_id
    if shard.tables.prepared.get(name) == request.prepared_offset:
        old = shard.tables.all[name]
        if (old.producer_id, old.producer_epoch) == (request.producer_id, request.producer_epoch):
            _complete(shard, name, old, now_ms, tx)
    tx.reply(tx.ticket, None)


def _proceed(shard: TransactionShard, name: str, decided: Transaction, now_ms: int, tx: Tx) -> None:
    if decided.partitions:
        _send(shard, name, decided, tx)
    else:
        _complete(shard, name, decided, now_ms, tx)


def _send(shard: TransactionShard, name: str, decided: Transaction, tx: Tx) -> None:
    markers = Markers(
        name,
        decided.producer_id,
        decided.producer_epoch,
        decided.state is State.PREPARE_COMMIT,
        tuple(sorted(decided.partitions)),
        decided.client_version,
        shard.tables.prepared[name],
    )

    # If leadership is lost first, the next coordinator either finds the record and sends the markers, or nothing was decided.
    tx.call(partial(shard.send, markers))


def _complete(shard: TransactionShard, name: str, old: Transaction, now_ms: int, tx: Tx) -> None:
    producer_id, epoch = old.successor
    new = old.replace(
        producer_id=producer_id,
        producer_epoch=epoch,
        next_producer_id=NO_PRODUCER_ID,
        next_producer_epoch=NO_EPOCH,
        state=ENDS[old.state],
        partitions=NO_PARTITIONS,
        updated_ms=now_ms,
    )
    shard.change(name, old, new, tx)

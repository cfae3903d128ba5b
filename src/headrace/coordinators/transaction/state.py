"""A transactional id and its transaction as a value, the tables of them, and the one way they change: `apply`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import msgspec

from headrace.base.ids import TopicPartition
from headrace.coordinators.transaction.asked import NO_EPOCH, NO_PRODUCER_ID
from headrace.coordinators.transaction.records import TransactionRecord
from headrace.coordinators.transaction.states import PREPARED, State
from headrace.protocol.messages.stored.transactions import TransactionLogValue
from headrace.statemachine.undo import Table, UndoLog

EPOCH_LAST = 32_766  # the highest that a producer is given
EPOCH_MAX = 32_767  # one more, so that whoever has the last can be fenced
NO_TIME = -1
TWO_PHASE_TIMEOUT_MS = 2_147_483_647  # a transaction with this one is never timed out (KIP-939)
TAGGED_VALUE_VERSION = 1
NO_PARTITIONS: frozenset[TopicPartition] = frozenset()

PartitionsSchema = TransactionLogValue.PartitionsSchema


class Transaction(msgspec.Struct, frozen=True):
    """The producer's id and epoch are those of the transaction: what its markers carry once it is decided.

    Whoever asks is the same producer, unless the transaction was kept for one that came later (KIP-939): that one is `next`.
    `next_producer_id` without an epoch is the id that a producer out of epochs goes on with, at epoch 0.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: State = State.EMPTY
    partitions: frozenset[TopicPartition] = NO_PARTITIONS
    started_ms: int = NO_TIME
    updated_ms: int = NO_TIME
    previous_producer_id: int = (
        NO_PRODUCER_ID  # the one before the last change: how a retry that changed it is recognised
    )
    next_producer_id: int = NO_PRODUCER_ID
    next_producer_epoch: int = NO_EPOCH
    client_version: int = 0  # of transactions, as whoever changed it last speaks

    @property
    def is_kept(self) -> bool:
        return self.next_producer_epoch != NO_EPOCH

    @property
    def client(self) -> tuple[int, int]:
        """Whom requests have to come from."""
        if self.is_kept:
            return self.next_producer_id, self.next_producer_epoch
        return self.producer_id, self.producer_epoch

    @property
    def successor(self) -> tuple[int, int]:
        """Who the producer is when the transaction is complete."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return self.next_producer_id, max(self.next_producer_epoch, 0)
        return self.producer_id, self.producer_epoch

    @property
    def is_two_phase(self) -> bool:
        return self.timeout_ms == TWO_PHASE_TIMEOUT_MS

    def but(self, **changes: Any) -> Transaction:
        return msgspec.structs.replace(self, **changes)


def record_of(transactional_id: str, transaction: Transaction, transaction_version: int) -> TransactionRecord:
    """Version 0 of the value has no tags. It is not written while there is a next producer, whatever the cluster's version: it would
    be forgotten."""
    partitions: list[PartitionsSchema] | None = None
    if transaction.state is not State.EMPTY:
        topics: dict[str, list[int]] = {}
        for topic, index in sorted(transaction.partitions):
            topics.setdefault(topic, []).append(index)
        partitions = [PartitionsSchema(topic, indexes) for topic, indexes in topics.items()]
    value = TransactionLogValue(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_timeout_ms=transaction.timeout_ms,
        transaction_status=transaction.state,
        transaction_partitions=partitions,
        transaction_last_update_timestamp_ms=transaction.updated_ms,
        transaction_start_timestamp_ms=transaction.started_ms,
    )
    if transaction_version < 1 and transaction.next_producer_id == NO_PRODUCER_ID:
        return TransactionRecord(transactional_id, value, 0)
    value.previous_producer_id = transaction.previous_producer_id
    value.next_producer_id = transaction.next_producer_id
    value.next_producer_epoch = transaction.next_producer_epoch
    value.client_transaction_version = transaction.client_version
    return TransactionRecord(transactional_id, value, TAGGED_VALUE_VERSION)


def transaction_of(value: TransactionLogValue) -> Transaction:
    return Transaction(
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        state=State(value.transaction_status),
        partitions=frozenset(
            TopicPartition(sys.intern(schema.topic), index)
            for schema in value.transaction_partitions or ()
            for index in schema.partition_ids
        ),
        started_ms=value.transaction_start_timestamp_ms,
        updated_ms=value.transaction_last_update_timestamp_ms,
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        next_producer_epoch=value.next_producer_epoch,
        client_version=value.client_transaction_version,
    )


class TransactionTables:
    def __init__(self, undo: UndoLog) -> None:
        self.all: Table[str, Transaction] = Table(undo)
        self.ongoing: Table[str, bool] = Table(undo)  # which of them are
        self.prepared: Table[str, int] = Table(undo)  # which are, and the offset that says so
        # The epoch a producer had before its present one, if it was the same producer that asked for the new one: how a retry of
        # InitProducerId is told from a zombie. Kafka does not store it either: a retry that meets a new coordinator is refused.
        self.last_epochs: Table[str, int] = Table(undo)
        self.epoch_causes: Table[str, str] = Table(undo)  # what gave the present epoch, for the log; not stored either
        # Where the sweeps are; see expiry.
        self.timeouts: Iterator[str] | None = None
        self.expiries: Iterator[str] | None = None

    def apply(self, record: TransactionRecord, offset: int) -> None:
        name = record.transactional_id
        if record.value is None:
            for table in (self.all, self.ongoing, self.prepared, self.last_epochs, self.epoch_causes):
                _drop(table, name)
            return
        transaction = self.all[name] = transaction_of(record.value)
        if transaction.state is not State.ONGOING:
            _drop(self.ongoing, name)
        elif name not in self.ongoing:
            self.ongoing[name] = True
        if transaction.state in PREPARED:
            self.prepared[name] = offset
        else:
            _drop(self.prepared, name)

    def remember_epoch(self, name: str, epoch: int, cause: str) -> None:
        """Remember the epoch that a retry may still come with (NO_EPOCH: none), and why it is not the current one."""
        self.epoch_causes[name] = cause
        if epoch == NO_EPOCH:
            _drop(self.last_epochs, name)
        else:
            self.last_epochs[name] = epoch


def _drop(table: Table[str, Any], name: str) -> None:
    if name in table:
        del table[name]

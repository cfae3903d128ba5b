"""Transactional ids with their transactions as values, and the tables of them, which only change in `apply`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import msgspec

from headrace.base.ids import TopicPartition
from headrace.coordinators.transaction.records import TransactionRecord
from headrace.coordinators.transaction.request import NO_EPOCH, NO_PRODUCER_ID
from headrace.coordinators.transaction.states import PREPARED, State
from headrace.protocol.messages.stored.transactions import TransactionLogValue
from headrace.statemachine.undo import Table, UndoLog

EPOCH_LAST = 32_766  # highest epoch that a producer is given
EPOCH_MAX = 32_767  # one more, so that a producer with the last epoch can be fenced
NO_TIME = -1
TWO_PHASE_TIMEOUT_MS = 2_147_483_647  # a transaction with this timeout never times out (KIP-939)
TAGGED_VALUE_VERSION = 1
NO_PARTITIONS: frozenset[TopicPartition] = frozenset()

PartitionsSchema = TransactionLogValue.PartitionsSchema


class Transaction(msgspec.Struct, frozen=True):
    """A transactional id with its current or last transaction.

    The producer id and epoch are those of the transaction, which its markers carry once it is decided. Requests come from the same
    producer, unless the transaction was kept for a later one (KIP-939), which is `next`. `next_producer_id` without an epoch is the id
    with which a producer that has run out of epochs continues, at epoch 0.
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: State = State.EMPTY
    partitions: frozenset[TopicPartition] = NO_PARTITIONS
    started_ms: int = NO_TIME
    updated_ms: int = NO_TIME
    # The id before the last change, by which a retry of a request that changed the id is recognised.
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    next_producer_epoch: int = NO_EPOCH
    client_version: int = 0  # transaction version of the client that made the last change

    @property
    def is_kept(self) -> bool:
        return self.next_producer_epoch != NO_EPOCH

    @property
    def client(self) -> tuple[int, int]:
        """Return the producer id and epoch that requests must have."""
        if self.is_kept:
            return self.next_producer_id, self.next_producer_epoch
        return self.producer_id, self.producer_epoch

    @property
    def successor(self) -> tuple[int, int]:
        """Return the producer id and epoch after the transaction is complete."""
        if self.next_producer_id != NO_PRODUCER_ID:
            return self.next_producer_id, max(self.next_producer_epoch, 0)
        return self.producer_id, self.producer_epoch

    @property
    def is_two_phase(self) -> bool:
        return self.timeout_ms == TWO_PHASE_TIMEOUT_MS

    def replace(self, **changes: Any) -> Transaction:
        return msgspec.structs.replace(self, **changes)


def record_of(transactional_id: str, transaction: Transaction, transaction_version: int) -> TransactionRecord:
    """Return the record of a transaction.

    Version 0 of the value has no tagged fields. While there is a next producer, it is not used at any version of the cluster, because it
    would lose that producer.
    """
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
        self.ongoing: Table[str, bool] = Table(undo)  # ids with an open transaction
        self.prepared: Table[str, int] = Table(undo)  # decided transactions, with the offset of the deciding record
        # The producer's previous epoch, if the same producer requested the current one: distinguishes a retry of InitProducerId from a
        # zombie. Kafka does not store it either: a retry that reaches a new coordinator is refused.
        self.last_epochs: Table[str, int] = Table(undo)
        self.epoch_causes: Table[str, str] = Table(undo)  # cause of the current epoch, for the log; not stored either
        # Positions of the sweeps; see `expiry`. Not durable.
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
        """Remember the epoch that a retry may still use (or NO_EPOCH), and why it is not the current one."""
        self.epoch_causes[name] = cause
        if epoch == NO_EPOCH:
            _drop(self.last_epochs, name)
        else:
            self.last_epochs[name] = epoch


def _drop(table: Table[str, Any], name: str) -> None:
    if name in table:
        del table[name]

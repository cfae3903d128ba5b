"""Requests to a transaction shard and their results.

Refusals are KafkaErrors, with the codes that the request's version knows.
"""

from __future__ import annotations

from msgspec import Struct

from headrace.base.errors import ErrorCode, HeadraceError
from headrace.base.ids import TopicPartition
from headrace.coordinators.transaction.states import State

NO_PRODUCER_ID = -1
NO_EPOCH = -1


class ProducerIdNeeded(HeadraceError):
    """The request has to be repeated with a fresh producer id.

    That happens for a new transactional id and when a producer has used up its epochs. It is rare, so that requests need not always
    carry one.
    """


class InitProducer(Struct, frozen=True):
    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID  # with the epoch, the identity that the producer claims (KIP-360)
    producer_epoch: int = NO_EPOCH
    fresh_producer_id: int = NO_PRODUCER_ID
    enable_two_phase_commit: bool = False
    keep_prepared: bool = False
    version: int = 5


class ProducerInitialized(Struct, frozen=True):
    producer_id: int
    producer_epoch: int
    ongoing_producer_id: int = NO_PRODUCER_ID  # producer of the transaction that was kept (KIP-939)
    ongoing_producer_epoch: int = NO_EPOCH


class AddPartitions(Struct, frozen=True):
    """An AddPartitionsToTxn, or an AddOffsetsToTxn with the partition of the group's offsets."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    verify_only: bool = False
    client_version: int = 0  # 2 if a partition's leader sends it for a client of transaction version 2
    version: int = 5


class PartitionResults(Struct, frozen=True):
    codes: dict[TopicPartition, ErrorCode]


class EndTransaction(Struct, frozen=True):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    client_version: int = 0  # 2 from EndTxn version 5 on
    fresh_producer_id: int = NO_PRODUCER_ID
    version: int = 5


class TransactionEnded(Struct, frozen=True):
    """The producer's new id and epoch; unset without transaction version 2, where they stay the same."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


class MarkersWritten(Struct, frozen=True):
    """Sent by the shell once every partition of Markers has its marker. Repeating it is harmless."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    prepared_offset: int


class Markers(Struct, frozen=True):
    """Markers that the shell has to write."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    partitions: tuple[TopicPartition, ...]
    transaction_version: int
    # Offset of the deciding record. Before version 2, nothing else distinguishes the transactions of a producer.
    prepared_offset: int

    def written(self) -> MarkersWritten:
        return MarkersWritten(self.transactional_id, self.producer_id, self.producer_epoch, self.prepared_offset)


class ListFilters(Struct, frozen=True):
    """The filters of ListTransactions; an empty filter matches everything."""

    states: frozenset[str] = frozenset()
    producer_ids: frozenset[int] = frozenset()
    duration_ms: int = -1
    pattern: str | None = None


class Listed(Struct, frozen=True):
    transactional_id: str
    producer_id: int
    state: State


class Described(Struct, frozen=True):
    transactional_id: str
    state: State
    timeout_ms: int
    started_ms: int  # -1 if there was no transaction yet
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]

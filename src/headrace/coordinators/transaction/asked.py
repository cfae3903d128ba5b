"""What a shard of transactions is asked, and what it answers. Refusals are KafkaErrors, in the codes of the request's version."""

from __future__ import annotations

from msgspec import Struct

from headrace.base.errors import ErrorCode, HeadraceError
from headrace.base.ids import TopicPartition
from headrace.coordinators.transaction.states import State

NO_PRODUCER_ID = -1
NO_EPOCH = -1


class ProducerIdNeeded(HeadraceError):
    """The producer has used up its epochs: ask again with a fresh producer id. It is rare, so that nobody needs to bring one always."""


class InitProducer(Struct, frozen=True):
    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID  # with the epoch: whom the asker takes itself for (KIP-360)
    producer_epoch: int = NO_EPOCH
    fresh_producer_id: int = NO_PRODUCER_ID
    enable_two_phase_commit: bool = False
    keep_prepared: bool = False
    version: int = 5


class ProducerInitialized(Struct, frozen=True):
    producer_id: int
    producer_epoch: int
    ongoing_producer_id: int = NO_PRODUCER_ID  # of the transaction that was kept (KIP-939)
    ongoing_producer_epoch: int = NO_EPOCH


class AddPartitions(Struct, frozen=True):
    """From AddPartitionsToTxn, or with the partition of a group's offsets from AddOffsetsToTxn."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    verify_only: bool = False
    client_version: int = 0  # 2 if a partition's leader asks for a client of transaction version 2
    version: int = 5


class PartitionsAnswered(Struct, frozen=True):
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
    """Whom the producer is from now on; nobody where transaction version 2 is not in use: it stays who it was."""

    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_EPOCH


class MarkersWritten(Struct, frozen=True):
    """Told by the shell once every partition of Markers has its marker; told twice it does no harm."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    prepared_offset: int


class Markers(Struct, frozen=True):
    """For the shell to write."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    partitions: tuple[TopicPartition, ...]
    transaction_version: int
    prepared_offset: int  # of the record that decided it: before version 2, transactions of a producer have nothing else of their own

    def written(self) -> MarkersWritten:
        return MarkersWritten(self.transactional_id, self.producer_id, self.producer_epoch, self.prepared_offset)


class ListFilters(Struct, frozen=True):
    """An empty one lets everything pass."""

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
    started_ms: int  # -1: no transaction yet
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]

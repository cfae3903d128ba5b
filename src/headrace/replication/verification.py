"""Verification of transactions: the coordinator must know a partition before a batch may open one there (KIP-890).

Theory: a marker ends what was written before it. A late batch of an ended transaction would therefore open a transaction that
never ends and blocks all read_committed consumers. So a guard is set BEFORE the request to the coordinator and must still
exist AFTER its confirmation, when the batch is appended. A marker removes the guard, and so does the batch that opens the
transaction; from then on the log itself knows that the transaction is open.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.records.batch import BatchHeader
from headrace.storage.producer_state import TRANSACTION_VERSION_2, ProducerEntry

GUARDS_MAX = 10_000  # per partition; beyond this the oldest is removed, and its batch must be sent again


class TransactionVerifier(Protocol):
    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        add: bool,
    ) -> dict[TopicPartition, ErrorCode]:
        """Return the coordinator's result for each partition: NONE if it belongs to the open transaction.

        With `add` the coordinator adds it if possible.
        """


class NoVerifier:
    """The verifier of a node without a transaction coordinator, where no transaction is ever open."""

    async def verify(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        add: bool,
    ) -> dict[TopicPartition, ErrorCode]:
        return dict.fromkeys(partitions, ErrorCode.INVALID_TXN_STATE)


class Guard:
    """The guard of one producer on one partition, shared by all of its batches that wait for the coordinator."""

    __slots__ = ("adds", "epoch", "leader_epoch", "lowest_sequence")

    def __init__(self, epoch: int, lowest_sequence: int, leader_epoch: int, *, adds: bool) -> None:
        self.epoch = epoch
        # A batch with a higher sequence is refused: if the first batch could not be verified, the second must not overtake it.
        self.lowest_sequence = lowest_sequence
        self.leader_epoch = leader_epoch
        self.adds = adds  # whether the coordinator adds the partition (transaction version 2)

    @property
    def waits(self) -> bool:
        """Return whether the coordinator must verify the transaction."""
        return self is not OPEN and self is not UNGUARDED

    @property
    def transaction_version(self) -> int:
        return TRANSACTION_VERSION_2 if self.adds else 0


OPEN = Guard(-1, -1, -1, adds=False)  # a transaction of this epoch is open here: no verification is needed
UNGUARDED = Guard(-1, -1, -1, adds=False)  # verification is disabled: no batch is checked


class Guards:
    __slots__ = ("_active",)

    def __init__(self) -> None:
        self._active: dict[int, Guard] = {}  # by producer id, oldest first

    def __len__(self) -> int:
        return len(self._active)

    def begin(
        self, entry: ProducerEntry | None, producer_id: int, epoch: int, sequence: int, leader_epoch: int, *, adds: bool
    ) -> Guard:
        """Return the producer's guard, creating or updating it. Call this BEFORE the request to the coordinator.

        `entry` is the log's state of this producer. Raise KafkaError if it has a later epoch.
        """
        if entry is not None:
            if epoch < entry.epoch:
                raise KafkaError(
                    ErrorCode.INVALID_PRODUCER_EPOCH,
                    f"producer {producer_id} has epoch {entry.epoch}, this request has epoch {epoch}",
                )
            if epoch == entry.epoch and entry.transaction_first_offset >= 0:
                return OPEN
        guard = self._active.get(producer_id)
        if guard is None:
            if len(self._active) >= GUARDS_MAX:
                del self._active[next(iter(self._active))]
            guard = self._active[producer_id] = Guard(epoch, sequence, leader_epoch, adds=adds)
        elif epoch > guard.epoch:
            guard.epoch, guard.lowest_sequence, guard.adds = epoch, sequence, adds
        elif epoch == guard.epoch:
            guard.lowest_sequence = min(guard.lowest_sequence, sequence)
        return guard

    def check(self, entry: ProducerEntry | None, header: BatchHeader, guard: Guard, leader_epoch: int) -> None:
        """Raise KafkaError if this batch may not be appended; the log itself checks for stale epochs and duplicates."""
        if guard is UNGUARDED:
            return
        if entry is not None and header.producer_epoch <= entry.epoch:
            if header.producer_epoch < entry.epoch or entry.transaction_first_offset >= 0:
                return
            if header.base_sequence >= 0 and entry.find(header.base_sequence, header.last_sequence) is not None:
                return
        if guard.waits and guard.leader_epoch != leader_epoch:
            raise KafkaError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"leader epoch {leader_epoch} began while a transaction was verified"
            )
        if self._active.get(header.producer_id) is not guard:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "the transaction ended before this batch arrived")
        if header.base_sequence > guard.lowest_sequence:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} sent sequence {header.base_sequence}, {guard.lowest_sequence} has not arrived yet",
            )

    def opened(self, producer_id: int) -> None:
        """Remove the producer's guard AFTER the first batch of its transaction was appended."""
        self._active.pop(producer_id, None)

    def ended(self, producer_id: int, epoch: int) -> None:
        """Remove the producer's guard AFTER a marker was appended.

        A marker of version 2 has the epoch of the NEXT transaction, whose guard may already be set and is kept.
        """
        guard = self._active.get(producer_id)
        if guard is not None and not (guard.adds and guard.epoch == epoch):
            del self._active[producer_id]

    def clear(self) -> None:
        """Remove all guards when a new leader term begins: markers may have been written that were not seen here."""
        self._active.clear()

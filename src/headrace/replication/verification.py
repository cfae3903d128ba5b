"""Before a batch may open a transaction on a partition, the coordinator must know that partition as a part of it (KIP-890).

Theory: a marker ends what was written before it, so a batch of an ended transaction that comes late would open one that nobody ever ends,
and hold back every reader. Hence a guard is put up BEFORE the coordinator is asked and must still stand AFTER it said yes, when the batch
is appended. A marker takes it down, and so does the batch that opens the transaction. From then on the log itself knows that it is open.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.records.batch import BatchHeader
from headrace.storage.producer_state import TRANSACTION_VERSION_2, ProducerEntry

GUARDS_MAX = 10_000  # of one partition; beyond, the oldest falls, and its batch has to be sent again


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
        """What the coordinator says of each: NONE if it belongs to the open transaction. With `add` it is made to, if it can be."""


class NoVerifier:
    """Where transactions have no coordinator, none is ever open."""

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
    """Of one producer on one partition, shared by all of its batches that wait for the coordinator's word."""

    __slots__ = ("adds", "epoch", "leader_epoch", "lowest_sequence")

    def __init__(self, epoch: int, lowest_sequence: int, leader_epoch: int, *, adds: bool) -> None:
        self.epoch = epoch
        # A higher one is refused: if the coordinator could not be asked for the first batch, the second must not overtake it.
        self.lowest_sequence = lowest_sequence
        self.leader_epoch = leader_epoch
        self.adds = adds  # the coordinator adds the partition: transaction version 2

    @property
    def waits(self) -> bool:
        """For the coordinator."""
        return self is not OPEN and self is not UNGUARDED

    @property
    def transaction_version(self) -> int:
        return TRANSACTION_VERSION_2 if self.adds else 0


OPEN = Guard(-1, -1, -1, adds=False)  # a transaction of this epoch is open here: the coordinator need not be asked
UNGUARDED = Guard(-1, -1, -1, adds=False)  # verification is switched off: nobody is asked, whatever is open


class Guards:
    __slots__ = ("_standing",)

    def __init__(self) -> None:
        self._standing: dict[int, Guard] = {}  # by producer id, the oldest first

    def __len__(self) -> int:
        return len(self._standing)

    def begin(
        self, entry: ProducerEntry | None, producer_id: int, epoch: int, sequence: int, leader_epoch: int, *, adds: bool
    ) -> Guard:
        """BEFORE the coordinator is asked. `entry` is what the log knows of this producer. KafkaError if it is known with a later epoch."""
        if entry is not None:
            if epoch < entry.epoch:
                raise KafkaError(
                    ErrorCode.INVALID_PRODUCER_EPOCH,
                    f"producer {producer_id} has epoch {entry.epoch}, this came with epoch {epoch}",
                )
            if epoch == entry.epoch and entry.transaction_first_offset >= 0:
                return OPEN
        guard = self._standing.get(producer_id)
        if guard is None:
            if len(self._standing) >= GUARDS_MAX:
                del self._standing[next(iter(self._standing))]
            guard = self._standing[producer_id] = Guard(epoch, sequence, leader_epoch, adds=adds)
        elif epoch > guard.epoch:
            guard.epoch, guard.lowest_sequence, guard.adds = epoch, sequence, adds
        elif epoch == guard.epoch:
            guard.lowest_sequence = min(guard.lowest_sequence, sequence)
        return guard

    def check(self, entry: ProducerEntry | None, header: BatchHeader, guard: Guard, leader_epoch: int) -> None:
        """May this batch be appended? What the log checks by itself, a past epoch or a repeat, is left to it."""
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
        if self._standing.get(header.producer_id) is not guard:
            raise KafkaError(ErrorCode.INVALID_TXN_STATE, "the transaction was ended before this batch came")
        if header.base_sequence > guard.lowest_sequence:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {header.producer_id} sent sequence {header.base_sequence}, {guard.lowest_sequence} is not here yet",
            )

    def opened(self, producer_id: int) -> None:
        """AFTER its first batch was appended."""
        self._standing.pop(producer_id, None)

    def ended(self, producer_id: int, epoch: int) -> None:
        """AFTER a marker was appended. One of version 2 bears the epoch of the NEXT transaction, for which a guard may stand already."""
        guard = self._standing.get(producer_id)
        if guard is not None and not (guard.adds and guard.epoch == epoch):
            del self._standing[producer_id]

    def clear(self) -> None:
        """Another term of leadership began: markers may have come in between that were not seen here."""
        self._standing.clear()

"""State of a partition's producers, used to drop duplicates, refuse gaps and track open transactions (KIP-98, KIP-360).

It has for each producer id the epoch, the last five batches (a client has at most five in flight) and the first offset of its
open transaction. `check` decides before the write and changes nothing; `appended` and `ended` are called once the bytes are
in the log. The first unstable offset is the first offset of the earliest transaction that is open or whose marker is not
below the high watermark.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from headrace.base.errors import ErrorCode, KafkaError
from headrace.records.batch import (
    NO_PRODUCER_EPOCH,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    SEQUENCE_MAX,
    TRANSACTIONAL,
    BatchHeader,
)
from headrace.records.control import TransactionMarker

BATCHES_PER_PRODUCER = 5
NO_OFFSET = -1
NO_COORDINATOR_EPOCH = -1
TRANSACTION_VERSION_2 = 2


class AppendedBatch(NamedTuple):
    """One of the last batches of a producer; the response to a duplicate of it has these offsets."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp: int


class CompletedTransaction(NamedTuple):
    producer_id: int
    first_offset: int
    last_offset: int  # offset of the marker
    aborted: bool
    # First offset of the earliest transaction that stays open, else the offset after the marker; ignores replication.
    last_stable_offset: int


class ProducerEntry:
    __slots__ = ("batches", "coordinator_epoch", "epoch", "last_timestamp", "producer_id", "transaction_first_offset")

    def __init__(self, producer_id: int, epoch: int = NO_PRODUCER_EPOCH) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        self.coordinator_epoch = NO_COORDINATOR_EPOCH
        self.last_timestamp = NO_TIMESTAMP
        self.transaction_first_offset = NO_OFFSET  # first offset of the open transaction, if there is one
        self.batches: deque[AppendedBatch] = deque(maxlen=BATCHES_PER_PRODUCER)

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else NO_SEQUENCE

    @property
    def last_offset(self) -> int:
        return self.batches[-1].last_offset if self.batches else NO_OFFSET

    def find(self, first_sequence: int, last_sequence: int) -> AppendedBatch | None:
        for batch in self.batches:
            if batch.first_sequence == first_sequence and batch.last_sequence == last_sequence:
                return batch
        return None

    def enter_epoch(self, epoch: int) -> None:
        if epoch != self.epoch:
            self.epoch = epoch
            self.batches.clear()


class ProducerState:
    def __init__(self) -> None:
        self._entries: dict[int, ProducerEntry] = {}
        # First offset -> producer id, in ascending order, as transactions begin at the log end.
        self._open: dict[int, int] = {}
        self._unreplicated: deque[CompletedTransaction] = deque()  # in the order of the marker offsets
        self._first_unreplicated = NO_OFFSET
        self.end_offset = 0  # offset below which all batches are included in this state
        # Whether an unknown producer must start at sequence 0. A new leader may have no state because the batches before were
        # lost with the old leader: to accept a later one would hide that from the producer.
        self.must_start_at_zero = False

    def __len__(self) -> int:
        return len(self._entries)

    def entry(self, producer_id: int) -> ProducerEntry | None:
        return self._entries.get(producer_id)

    def entries(self) -> Iterable[ProducerEntry]:
        return self._entries.values()

    def check(
        self, header: BatchHeader, *, sequences: bool = True, transaction_version: int = 0
    ) -> AppendedBatch | None:
        """Return None if the batch may be appended, or the batch already in the log that it duplicates.

        `sequences` is false for batches that a coordinator appends on behalf of a producer: they have an epoch but no sequence.
        Raise KafkaError if the batch must be refused.
        """
        entry = self._entries.get(header.producer_id)
        if entry is None:
            # In version 2 every transaction starts a new epoch and therefore at sequence 0.
            starts_at_zero = self.must_start_at_zero or transaction_version >= TRANSACTION_VERSION_2
            if sequences and starts_at_zero and header.base_sequence != 0:
                raise _out_of_order(header, "expected 0 from a producer without state")
            return None
        if sequences and header.producer_epoch == entry.epoch:
            first = header.base_sequence
            last = entry.last_sequence
            if first != last + 1 and not (first == 0 and last == SEQUENCE_MAX):
                duplicate = entry.find(first, header.last_sequence)
                if duplicate is not None:
                    return duplicate
                if entry.epoch != NO_PRODUCER_EPOCH:
                    raise _out_of_order(header, f"the last sequence is {last}")
        elif header.producer_epoch < entry.epoch:
            raise _stale_epoch(header, entry.epoch)
        elif (
            sequences
            and header.producer_epoch > entry.epoch
            and header.base_sequence != 0
            and entry.epoch != NO_PRODUCER_EPOCH
        ):
            raise _out_of_order(header, f"the first of epoch {header.producer_epoch} must be 0")
        if entry.transaction_first_offset >= 0 and not header.attributes & TRANSACTIONAL:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {header.producer_id} has a transaction open since offset {entry.transaction_first_offset}",
            )
        return None

    def check_marker(self, header: BatchHeader, marker: TransactionMarker, *, transaction_version: int = 0) -> None:
        """Raise KafkaError if the producer epoch or coordinator epoch of a marker is stale (KIP-890)."""
        entry = self._entries.get(header.producer_id)
        if entry is None:
            return
        epoch = header.producer_epoch
        if epoch < entry.epoch:
            raise _stale_epoch(header, entry.epoch)
        # Version 2 increments the epoch for every marker. A marker of the current epoch is a duplicate if no transaction is
        # open, and otherwise comes too late.
        if (
            transaction_version >= TRANSACTION_VERSION_2
            and epoch == entry.epoch
            and entry.transaction_first_offset >= 0
        ):
            raise _stale_epoch(header, entry.epoch)
        if marker.coordinator_epoch < entry.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"the marker has coordinator epoch {marker.coordinator_epoch}, an earlier one had {entry.coordinator_epoch}",
            )

    def appended(self, header: BatchHeader, first_offset: int, timestamp: int) -> None:
        """Record that a data batch of a producer was written at `first_offset`."""
        producer_id = header.producer_id
        entry = self._entries.get(producer_id)
        if entry is None:
            entry = self._entries[producer_id] = ProducerEntry(producer_id, header.producer_epoch)
        elif entry.epoch != header.producer_epoch:
            entry.enter_epoch(header.producer_epoch)
        last_offset = first_offset + header.last_offset_delta
        first_sequence = header.base_sequence
        last_sequence = (
            (first_sequence + header.last_offset_delta) & SEQUENCE_MAX if first_sequence >= 0 else NO_SEQUENCE
        )
        entry.batches.append(AppendedBatch(first_sequence, last_sequence, first_offset, last_offset, timestamp))
        entry.last_timestamp = timestamp
        if header.attributes & TRANSACTIONAL and entry.transaction_first_offset < 0:
            entry.transaction_first_offset = first_offset
            self._open[first_offset] = producer_id
        self.end_offset = last_offset + 1

    def completion(self, producer_id: int, marker: TransactionMarker, offset: int) -> CompletedTransaction | None:
        """Return the transaction that a marker at `offset` would complete, or None if the producer has none open."""
        entry = self._entries.get(producer_id)
        if entry is None or entry.transaction_first_offset < 0:
            return None
        first_offset = entry.transaction_first_offset
        stable = next((undecided for undecided in self._open if undecided != first_offset), offset + 1)
        return CompletedTransaction(producer_id, first_offset, offset, not marker.commit, stable)

    def ended(
        self, header: BatchHeader, marker: TransactionMarker, offset: int, timestamp: int
    ) -> CompletedTransaction | None:
        """Record that a marker was written at `offset`, and return the transaction that it completed, if any."""
        producer_id = header.producer_id
        completed = self.completion(producer_id, marker, offset)
        entry = self._entries.get(producer_id)
        if entry is None:
            entry = self._entries[producer_id] = ProducerEntry(producer_id, header.producer_epoch)
        entry.enter_epoch(header.producer_epoch)
        entry.coordinator_epoch = marker.coordinator_epoch
        entry.last_timestamp = timestamp
        self.end_offset = offset + 1
        if completed is None:
            return None
        first_offset = completed.first_offset
        entry.transaction_first_offset = NO_OFFSET
        self._open.pop(first_offset, None)
        self._unreplicated.append(completed)
        if self._first_unreplicated < 0 or first_offset < self._first_unreplicated:
            self._first_unreplicated = first_offset
        return completed

    def high_watermark_advanced(self, high_watermark: int) -> None:
        """Forget completed transactions whose marker is below the high watermark: they are final."""
        unreplicated = self._unreplicated
        if not unreplicated or unreplicated[0].last_offset >= high_watermark:
            return
        while unreplicated and unreplicated[0].last_offset < high_watermark:
            unreplicated.popleft()
        self._first_unreplicated = min((one.first_offset for one in unreplicated), default=NO_OFFSET)

    @property
    def first_undecided_offset(self) -> int | None:
        return next(iter(self._open), None)

    @property
    def first_unstable_offset(self) -> int | None:
        undecided = next(iter(self._open), None)
        if self._first_unreplicated < 0:
            return undecided
        return self._first_unreplicated if undecided is None else min(undecided, self._first_unreplicated)

    def expire(self, now_ms: int, expiration_ms: int) -> list[int]:
        """Forget producers that wrote nothing for `expiration_ms` and have no open transaction; return their ids."""
        expired = [
            entry.producer_id
            for entry in self._entries.values()
            if entry.transaction_first_offset < 0 and now_ms - entry.last_timestamp >= expiration_ms
        ]
        for producer_id in expired:
            del self._entries[producer_id]
        return expired

    def reset(self, end_offset: int, entries: Iterable[ProducerEntry] = ()) -> None:
        self._entries = {entry.producer_id: entry for entry in entries}
        open_transactions = [
            (entry.transaction_first_offset, entry.producer_id)
            for entry in self._entries.values()
            if entry.transaction_first_offset >= 0
        ]
        self._open = dict(sorted(open_transactions))
        self._unreplicated.clear()
        self._first_unreplicated = NO_OFFSET
        self.end_offset = end_offset


def _out_of_order(header: BatchHeader, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        f"producer {header.producer_id} epoch {header.producer_epoch} sent sequence {header.base_sequence}: {why}",
    )


def _stale_epoch(header: BatchHeader, known: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"producer {header.producer_id} has epoch {known}, this request has epoch {header.producer_epoch}",
    )

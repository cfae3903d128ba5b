"""Sequence numbers of an idempotent producer: assigns them to batches, and decides how to handle errors.

For each producer id and epoch, brokers accept the batches of a partition only in sequence order, without gaps, and
recognize duplicates. So a batch keeps its sequence when it is sent again. When one has failed for good, those behind
this gap can no longer be written under the old epoch: they, and all others, continue under the next epoch from sequence
0, as soon as all batches before the gap are answered (one of these may have been written already; under another epoch
it would be written again). A transactional producer does not do this: its transaction is aborted, and the next one
starts afresh.

Pure: it changes only the fields of batches; the sender does the I/O.
"""

from __future__ import annotations

from enum import Enum

from headrace.base.errors import RETRIABLE, ErrorCode
from headrace.base.ids import TopicPartition
from headrace.client.producer.batches import NO_PRODUCER, ProducerBatch, ProducerIdentity
from headrace.records.batch import NO_SEQUENCE, advance_sequence

EPOCH_MAX = 32767


class Verdict(Enum):
    RETRY = "retry"
    FAIL = "fail"


class _Partition:
    """The sequences of one partition.

    `in_flight` holds all batches with a sequence and without a final response, in order, including those waiting to be
    sent again.
    """

    __slots__ = (
        "acked_offset",
        "acked_sequence",
        "gap",
        "identity",
        "in_flight",
        "is_unresolved",
        "next_sequence",
        "on_wire",
    )

    def __init__(self, identity: ProducerIdentity) -> None:
        self.identity = identity
        self.next_sequence = 0
        self.acked_sequence = NO_SEQUENCE
        self.acked_offset = -1
        self.in_flight: list[ProducerBatch] = []
        self.on_wire = 0
        self.gap: int | None = None  # number of batches in `in_flight` before the gap
        self.is_unresolved = False  # it is unknown whether a batch that was given up has been written

    def remove(self, batch: ProducerBatch) -> int:
        """Remove the batch from `in_flight` and return its index."""
        position = self.in_flight.index(batch)
        del self.in_flight[position]
        if self.gap is not None and position < self.gap:
            self.gap -= 1
        return position


class Sequences:
    def __init__(self, *, transactional: bool) -> None:
        self.identity = NO_PRODUCER
        self._transactional = transactional
        self._partitions: dict[TopicPartition, _Partition] = {}
        self._unresolved: set[TopicPartition] = set()
        self._bump: set[TopicPartition] = set()  # partitions whose gaps the next epoch closes

    def start(self, identity: ProducerIdentity) -> None:
        """Start with a new producer id or epoch from the coordinator: every partition begins at 0."""
        assert not any(state.in_flight for state in self._partitions.values())
        self.identity = identity
        self._partitions.clear()
        self._unresolved.clear()
        self._bump.clear()

    def _state(self, partition: TopicPartition) -> _Partition:
        state = self._partitions.get(partition)
        if state is None:
            state = self._partitions[partition] = _Partition(self.identity)
        return state

    # --- before a batch is sent

    def admits(self, batch: ProducerBatch) -> bool:
        """Return whether this batch, the first of its queue, may be sent now."""
        state = self._partitions.get(batch.partition)
        if self.identity == NO_PRODUCER:
            return False
        if state is None:
            return True
        if batch.has_sequence:
            return state.in_flight[0] is batch and state.gap != 0  # one at a time, until all failed batches are through
        if state.is_unresolved or state.gap is not None:
            return False
        # A batch of the new epoch must not overtake those of the old one. And a leader without state for this producer
        # accepts any sequence: the second batch must not arrive there after the first has failed, or the first could
        # never be written.
        return not state.in_flight or (state.identity == self.identity and state.acked_sequence != NO_SEQUENCE)

    def assign(self, batch: ProducerBatch) -> None:
        """Give the batch a sequence unless it has one. Call this each time it is put on the wire."""
        state = self._state(batch.partition)
        if not batch.has_sequence:
            if state.identity != self.identity:
                self._restart(state)
            batch.identity, batch.base_sequence = state.identity, state.next_sequence
            state.next_sequence = advance_sequence(state.next_sequence, batch.count)
            state.in_flight.append(batch)
        state.on_wire += 1

    def _restart(self, state: _Partition) -> None:
        """Start again from 0 under the current identity, including batches that wait to be sent again."""
        state.identity = self.identity
        state.next_sequence, state.acked_sequence = 0, NO_SEQUENCE
        state.gap, state.is_unresolved = None, False
        for batch in state.in_flight:
            batch.identity, batch.base_sequence = self.identity, state.next_sequence
            batch.sequence_was_reset = True
            state.next_sequence = advance_sequence(state.next_sequence, batch.count)

    # --- after a response

    def returned(self, batch: ProducerBatch) -> None:
        """Record that the batch is no longer on the wire. Call this before the response is evaluated."""
        self._state(batch.partition).on_wire -= 1

    def acknowledged(self, batch: ProducerBatch, base_offset: int) -> None:
        state = self._state(batch.partition)
        state.remove(batch)
        if batch.identity != state.identity:
            return
        state.acked_sequence = batch.last_sequence
        if base_offset >= 0:
            state.acked_offset = max(state.acked_offset, base_offset + batch.count - 1)

    def judge(self, batch: ProducerBatch, code: ErrorCode, log_start_offset: int) -> Verdict:
        """Return what to do about an error, as Kafka's client does; this may require the next epoch."""
        state = self._state(batch.partition)
        if code is ErrorCode.UNKNOWN_PRODUCER_ID:
            return self._judge_unknown_producer(state, batch, log_start_offset)
        if code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER:
            if state.in_flight[0] is not batch:
                return Verdict.RETRY  # a batch before it has yet to be written
            if self._transactional:
                return Verdict.RETRY if batch.sequence_was_reset else Verdict.FAIL
            self._leave_gap(batch.partition, state, 0)  # what is missing before it will never be written
            return Verdict.RETRY
        return Verdict.RETRY if code in RETRIABLE else Verdict.FAIL

    def _judge_unknown_producer(self, state: _Partition, batch: ProducerBatch, log_start_offset: int) -> Verdict:
        """Decide after retention has removed all that this producer wrote, so that the broker has forgotten it."""
        if batch.sequence_was_reset:
            return Verdict.RETRY
        if not self._transactional:
            if batch.identity == self.identity:
                self._leave_gap(batch.partition, state, state.in_flight.index(batch))
            return Verdict.RETRY
        if log_start_offset >= 0 and state.acked_offset < log_start_offset:
            self._restart(state)
            return Verdict.RETRY
        return Verdict.FAIL

    def failed(self, batch: ProducerBatch, *, written: bool | None) -> None:
        """Record that the batch was given up.

        `written` is False if a broker said that it is not in the log, None if that is unknown.
        """
        if not batch.has_sequence:
            return
        state = self._state(batch.partition)
        position = state.remove(batch)
        if self._transactional or batch.identity != state.identity:
            return  # the transaction is aborted, or the epoch has changed since
        if written is None:
            state.is_unresolved = True
            self._unresolved.add(batch.partition)
        else:
            self._leave_gap(batch.partition, state, position)

    def _leave_gap(self, partition: TopicPartition, state: _Partition, position: int) -> None:
        state.gap = position if state.gap is None else min(state.gap, position)
        self._bump.add(partition)

    def replaced(self, batch: ProducerBatch, pieces: list[ProducerBatch]) -> None:
        """Replace a split batch by its pieces, which have its sequences."""
        if batch.has_sequence:
            state = self._state(batch.partition)
            position = state.in_flight.index(batch)
            state.in_flight[position : position + 1] = pieces
            if state.gap is not None and position < state.gap:
                state.gap += len(pieces) - 1

    # --- the next epoch

    def settle(self) -> bool:
        """Resolve batches in doubt, and go to the next epoch if required and nothing in flight depends on this one.

        Return True if the producer id is used up: the sender must then request another one.
        """
        for partition in [one for one in self._unresolved if not self._partitions[one].in_flight]:
            self._unresolved.discard(partition)
            state = self._partitions[partition]
            if state.is_unresolved and not self._has_all(state):
                self._leave_gap(partition, state, 0)
            state.is_unresolved = False
        waiting = (self._partitions[partition] for partition in self._bump)
        if not self._bump or any(state.on_wire or state.gap for state in waiting):
            return False
        if self.identity.epoch >= EPOCH_MAX:
            return True
        self.next_epoch(self.identity._replace(epoch=self.identity.epoch + 1))
        return False

    @staticmethod
    def _has_all(state: _Partition) -> bool:
        """Return whether a batch after the one in doubt was written, which means that this one was, too."""
        return state.acked_sequence != NO_SEQUENCE and advance_sequence(state.acked_sequence, 1) == state.next_sequence

    def next_epoch(self, identity: ProducerIdentity) -> None:
        """Use the new identity; partitions with a gap restart now, others when all their batches are answered."""
        self.identity = identity
        for partition in self._bump:
            self._restart(self._partitions[partition])
        self._bump.clear()

    @property
    def has_in_flight(self) -> bool:
        return any(state.in_flight for state in self._partitions.values())

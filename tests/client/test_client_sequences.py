"""Sequence numbers of an idempotent producer, checked as Kafka's partitions do: no duplicates, no reordering."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest

from headrace.base.errors import ErrorCode
from headrace.base.ids import TopicPartition
from headrace.client.producer.accumulator import Accumulator
from headrace.client.producer.batches import ProducerBatch, ProducerIdentity
from headrace.client.producer.sequences import EPOCH_MAX, Sequences, Verdict
from headrace.records.batch import NO_SEQUENCE

HERE, THERE = TopicPartition("t", 0), TopicPartition("t", 1)
IDENTITY = ProducerIdentity(7, 0)
IN_FLIGHT_MAX = 5
REMEMBERED = 5
SEEDS = 2000


def batch_of(count: int = 1, partition: TopicPartition = HERE) -> ProducerBatch:
    batch = ProducerBatch(partition, 0.0, 100.0)
    for _ in range(count):
        batch.append(0, None, b"", (), None)
    return batch


def started(transactional: bool = False) -> Sequences:
    sequences = Sequences(transactional=transactional)
    sequences.start(IDENTITY)
    return sequences


def known(transactional: bool = False, *partitions: Any) -> Sequences:
    """Return sequences after a batch of one record was written to each partition."""
    sequences = started(transactional)
    for partition in partitions or (HERE,):
        send(sequences, batch := batch_of(1, partition))
        acknowledge(sequences, batch, 0)
    return sequences


def send(sequences: Sequences, *batches: ProducerBatch) -> None:
    for batch in batches:
        assert sequences.admits(batch)
        sequences.assign(batch)


def acknowledge(sequences: Sequences, batch: ProducerBatch, offset: int) -> None:
    sequences.returned(batch)
    sequences.acknowledged(batch, offset)


def refuse(sequences: Sequences, batch: ProducerBatch, code: ErrorCode, log_start_offset: int = -1) -> Verdict:
    sequences.returned(batch)
    return sequences.judge(batch, code, log_start_offset)


def test_no_batch_is_admitted_before_a_producer_id_is_assigned() -> None:
    sequences = Sequences(transactional=False)
    assert not sequences.admits(batch_of())
    sequences.next_epoch(IDENTITY)
    assert sequences.admits(batch_of())


def test_sequences_increase_per_partition() -> None:
    sequences = known()
    batches = [batch_of(3), batch_of(2), batch_of(1, THERE), batch_of()]
    send(sequences, *batches)
    assert [batch.base_sequence for batch in batches] == [1, 4, 0, 6]


def test_the_first_batch_must_be_acknowledged_before_others_are_admitted() -> None:
    sequences = started()
    send(sequences, first := batch_of())
    assert not sequences.admits(batch_of()) and sequences.admits(batch_of(1, THERE))
    acknowledge(sequences, first, 0)
    send(sequences, batch_of(), batch_of())


def test_failed_batches_are_retried_one_at_a_time_with_their_sequences() -> None:
    sequences = known()
    first, second, third = batch_of(2), batch_of(), batch_of()
    send(sequences, first, second)
    assert refuse(sequences, first, ErrorCode.NOT_LEADER_OR_FOLLOWER) is Verdict.RETRY
    assert refuse(sequences, second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER) is Verdict.RETRY
    assert not sequences.admits(second)
    send(sequences, first)
    assert not sequences.admits(second) and sequences.admits(third)
    acknowledge(sequences, first, 10)
    send(sequences, second)
    assert (first.base_sequence, second.base_sequence, sequences.identity) == (1, 3, IDENTITY)


def test_a_rejected_batch_starts_the_next_epoch_at_sequence_0() -> None:
    sequences = known()
    first, second, other = batch_of(2), batch_of(3), batch_of(1, THERE)
    send(sequences, first, second, other)
    sequences.returned(first)
    sequences.failed(first, written=False)
    assert not sequences.admits(batch_of()) and not sequences.settle()  # the outcome of the batch in flight is unknown
    assert sequences.identity == IDENTITY
    assert refuse(sequences, second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER) is Verdict.RETRY
    assert not sequences.settle() and sequences.identity == (7, 1)
    assert (second.identity, second.base_sequence, other.identity) == ((7, 1), 0, IDENTITY)
    late = batch_of(1, THERE)
    assert not sequences.admits(late)  # the other partition waits for the responses to its batches
    acknowledge(sequences, other, 5)
    send(sequences, second, late)
    assert (late.identity, late.base_sequence) == ((7, 1), 0)


def test_a_batch_with_unknown_outcome_is_resolved_by_the_next_acknowledgement() -> None:
    sequences = known()
    first, second, third = batch_of(), batch_of(), batch_of()
    send(sequences, first, second)
    sequences.returned(first)
    sequences.failed(first, written=None)
    assert not sequences.admits(third)
    acknowledge(sequences, second, 1)  # thus the first was written
    assert not sequences.settle() and sequences.identity == IDENTITY
    send(sequences, third)
    assert third.base_sequence == 3


def test_a_batch_whose_outcome_stays_unknown_starts_the_next_epoch() -> None:
    sequences = started()
    first = batch_of()
    send(sequences, first)
    sequences.returned(first)
    sequences.failed(first, written=None)
    assert not sequences.settle() and sequences.identity == (7, 1)
    second = batch_of()
    send(sequences, second)
    assert second.base_sequence == 0


def test_exhausted_epochs_require_another_producer_id() -> None:
    sequences = Sequences(transactional=False)
    sequences.start(ProducerIdentity(7, EPOCH_MAX))
    batch = batch_of()
    send(sequences, batch)
    sequences.returned(batch)
    sequences.failed(batch, written=False)
    assert sequences.settle()
    sequences.next_epoch(ProducerIdentity(8, 0))
    send(sequences, again := batch_of())
    assert (again.identity, again.base_sequence) == ((8, 0), 0)


def test_unknown_producer_id_is_retried_in_the_next_epoch() -> None:
    sequences = started()
    send(sequences, first := batch_of())
    acknowledge(sequences, first, 3)
    send(sequences, second := batch_of())
    assert refuse(sequences, second, ErrorCode.UNKNOWN_PRODUCER_ID, 9) is Verdict.RETRY
    assert not sequences.settle()
    assert (second.identity, second.base_sequence) == ((7, 1), 0)


@pytest.mark.parametrize(("log_start_offset", "verdict"), [(9, Verdict.RETRY), (2, Verdict.FAIL), (-1, Verdict.FAIL)])
def test_a_transactional_producer_restarts_at_sequence_0_only_if_its_records_are_deleted(
    log_start_offset: int, verdict: Verdict
) -> None:
    sequences = started(transactional=True)
    send(sequences, first := batch_of())
    acknowledge(sequences, first, 3)
    send(sequences, second := batch_of())
    assert refuse(sequences, second, ErrorCode.UNKNOWN_PRODUCER_ID, log_start_offset) is verdict
    assert second.base_sequence == (0 if verdict is Verdict.RETRY else 1) and sequences.identity == IDENTITY


def test_a_transactional_producer_keeps_its_epoch_after_failed_batches() -> None:
    sequences = known(True)
    send(sequences, first := batch_of(), second := batch_of())
    assert refuse(sequences, first, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER) is Verdict.FAIL
    sequences.failed(first, written=False)
    sequences.returned(second)
    sequences.failed(second, written=None)
    assert not sequences.settle() and sequences.identity == IDENTITY and not sequences.has_in_flight
    sequences.start(ProducerIdentity(7, 1))
    send(sequences, third := batch_of())
    assert (third.identity, third.base_sequence) == ((7, 1), 0)


class Partition:
    """The log of a partition, and its leader's state of the producer."""

    def __init__(self) -> None:
        self.log: list[int] = []
        self.epoch = -1
        self.last_sequence = NO_SEQUENCE
        self.remembered: deque[Any] = deque(maxlen=REMEMBERED)

    def append(self, name: int, identity: ProducerIdentity, base_sequence: int, count: int) -> ErrorCode:
        last = base_sequence + count - 1
        if identity.epoch < self.epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if identity.epoch > self.epoch:
            if base_sequence != 0 and self.epoch >= 0:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            self.remembered.clear()
        elif (base_sequence, last) in self.remembered:
            return ErrorCode.NONE
        elif base_sequence != self.last_sequence + 1:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
        self.epoch, self.last_sequence = identity.epoch, last
        self.remembered.append((base_sequence, last))
        self.log.append(name)
        return ErrorCode.NONE


@pytest.mark.parametrize("first_seed", range(0, SEEDS, SEEDS // 4))
def test_random_faults_write_each_batch_at_most_once_and_in_order(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + SEEDS // 4):
        run_random_faults(seed)


def run_random_faults(seed: int) -> None:
    random_source = Random(seed)
    producer = FaultyProducer(random_source)
    for name in range(random_source.randint(1, 12)):
        producer.append(name)
        for _ in range(random_source.randint(0, 8)):
            producer.step()
    producer.finish()
    producer.check(seed)


@dataclass(eq=False)
class Flight:
    """A request in flight, with the identity and sequence that its batch had when it was sent."""

    batch: ProducerBatch
    identity: ProducerIdentity
    base_sequence: int
    response: ErrorCode | None = None  # None until the request has arrived


class FaultyProducer:
    """A producer of one partition, over a connection on which requests and responses are lost or refused at random."""

    def __init__(self, random_source: Random) -> None:
        self.random = random_source
        self.sequences, self.partition = started(), Partition()
        self.accumulator = Accumulator(batch_bytes=1, linger_s=0.0, delivery_s=1000.0)
        self.wire: deque[Flight] = deque()
        self.names: dict[ProducerBatch, int] = {}
        self.acknowledged: list[int] = []
        self.refused: list[int] = []
        self.in_doubt: list[int] = []

    def append(self, name: int) -> None:
        self.accumulator.append(HERE, 0, None, b"", (), None, size=40, now=0.0)
        self.names[list(self.accumulator.incomplete)[-1]] = name

    def step(self) -> None:
        act = self.random.choice(
            ["send", "send", "arrive", "arrive", "answer", "answer", "cut", "refuse", "expire", "error"]
        )
        head = self.accumulator.head(HERE)
        if act == "send" and head is not None and len(self.wire) < IN_FLIGHT_MAX and self.sequences.admits(head):
            self.send()
        elif act in ("arrive", "refuse", "error"):
            flight = next((flight for flight in self.wire if flight.response is None), None)
            if flight is not None:
                self.arrive(flight, act)
        elif act == "answer" and self.wire and self.wire[0].response is not None:
            self.answer()
        elif act == "cut":
            while self.wire:
                self.handle_response(self.wire.popleft().batch, ErrorCode.NETWORK_EXCEPTION)
        elif act == "expire" and head is not None and head.has_sequence:
            self.drain()
            self.sequences.failed(head, written=None)
            self.in_doubt.append(self.names[head])
        self.sequences.settle()

    def finish(self) -> None:
        """Go on without faults: requests in flight arrive and get their responses, then the next is sent."""
        for _ in range(2000):
            if self.accumulator.head(HERE) is None and not self.wire:
                break
            for flight in self.wire:
                if flight.response is None:
                    self.arrive(flight, "arrive")
            while self.wire:
                self.answer()
            self.sequences.settle()
            head = self.accumulator.head(HERE)
            if head is not None:
                assert self.sequences.admits(head)
                self.send()

    def check(self, seed: int) -> None:
        log, acknowledged, in_doubt = self.partition.log, self.acknowledged, self.in_doubt
        assert self.accumulator.head(HERE) is None and not self.wire, seed
        assert len(log) == len(set(log)), (seed, "twice")
        assert log == sorted(log), (seed, "overtaken")
        assert set(acknowledged) <= set(log) <= set(acknowledged) | set(in_doubt), (seed, "lost")
        assert len(acknowledged) + len(self.refused) + len(in_doubt) == len(self.names), seed

    def drain(self) -> ProducerBatch:
        (batch,) = self.accumulator.drain([HERE], bytes_max=1 << 20, admits=lambda batch: True)
        return batch

    def send(self) -> None:
        batch = self.drain()
        self.sequences.assign(batch)
        batch.attempts += 1
        self.wire.append(Flight(batch, batch.identity, batch.base_sequence))

    def arrive(self, flight: Flight, act: str) -> None:
        name = self.names[flight.batch]
        if act == "refuse" and name not in self.partition.log:  # a batch that was appended is not refused later
            flight.response = ErrorCode.INVALID_RECORD
        elif act == "error":
            flight.response = ErrorCode.NOT_ENOUGH_REPLICAS
        else:
            flight.response = self.partition.append(name, flight.identity, flight.base_sequence, flight.batch.count)

    def answer(self) -> None:
        flight = self.wire.popleft()
        assert flight.response is not None
        self.handle_response(flight.batch, flight.response)

    def handle_response(self, batch: ProducerBatch, code: ErrorCode) -> None:
        self.sequences.returned(batch)
        if code is ErrorCode.NONE:
            self.sequences.acknowledged(batch, 0)
            self.acknowledged.append(self.names[batch])
        elif self.sequences.judge(batch, code, -1) is Verdict.RETRY:
            self.accumulator.put_back(batch)
        else:
            self.sequences.failed(batch, written=False)
            self.refused.append(self.names[batch])

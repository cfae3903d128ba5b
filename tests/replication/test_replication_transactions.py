"""Transactions on one partition: markers in Kafka's format, and guards that keep an ended transaction from reopening."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
from aiokafka.record.control_record import ABORT_MARKER, COMMIT_MARKER
from aiokafka.record.control_record import ControlRecord as AioControlRecord
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.replication.replication_samples import NOW_MS, elect, make_files, make_partition

from headrace.base.errors import ErrorCode, KafkaError
from headrace.cli.dump.batches import dump_batches
from headrace.cli.output import progress
from headrace.records.batch import read_header
from headrace.records.builder import build_batch
from headrace.records.control import TransactionMarker
from headrace.records.record import Record
from headrace.replication.partition import Partition
from headrace.replication.verification import GUARDS_MAX, OPEN, UNGUARDED, Guard, Guards
from headrace.storage.append import AppendInfo

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record.default_records import DefaultRecordBatch as PythonBatch

PRODUCER = 9
COMMIT, ABORT = TransactionMarker(True, 4), TransactionMarker(False, 4)


def append(
    partition: Partition, guard: Guard, epoch: int = 0, sequence: int = 0, check_producer: bool = True
) -> AppendInfo:
    batch = build_batch(
        [Record(0, NOW_MS, b"k", b"v")],
        producer_id=PRODUCER,
        producer_epoch=epoch,
        base_sequence=sequence,
        transactional=True,
    )
    return partition.append_transactional(
        memoryview(batch), read_header(batch), NOW_MS, NOW_MS, guard, check_producer=check_producer
    )


def append_error_code(partition: Partition, guard: Guard, epoch: int = 0, sequence: int = 0) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        append(partition, guard, epoch, sequence)
    return caught.value.code


@pytest.mark.parametrize("marker", [COMMIT, ABORT])
def test_markers_are_written_in_kafkas_format(tmp_path: Path, marker: TransactionMarker) -> None:
    partition = make_partition(make_files())
    elect(partition, 1, 6, (1,))
    append(partition, UNGUARDED, epoch=3)
    info = partition.append_marker(PRODUCER, 4, marker, 2, NOW_MS + 5)
    assert (info.first_offset, info.duplicate, partition.high_watermark, partition.last_stable_offset) == (
        1,
        False,
        2,
        2,
    )
    assert info.completed is not None and info.completed.aborted != marker.commit
    data = partition.log.read(1, 1000).range.read()
    # One record with offset delta 0 and no headers: the key has version 0 and the type, the value version 0 and coordinator epoch.
    assert data[61:] == b"\x20\0\0\0\x08\0\0\0" + bytes([marker.commit]) + b"\x0c\0\0\0\0\0\x04\0"
    for reader in (AioBatch(data), PythonBatch(data)):
        assert reader.validate_crc()
        assert reader.is_control_batch and reader.is_transactional and reader.compression_type == 0
        assert (reader.producer_id, reader.base_offset, reader.max_timestamp) == (PRODUCER, 1, NOW_MS + 5)
        (record,) = reader
        assert AioControlRecord.parse(record.key) == (COMMIT_MARKER if marker.commit else ABORT_MARKER)
    header = read_header(data)
    assert (header.producer_epoch, header.base_sequence, header.leader_epoch, header.record_count) == (4, -1, 6, 1)
    path = tmp_path / f"{0:020}.log"
    path.write_bytes(partition.log.read(0, 1000).range.read())
    with progress("bytes", None) as done:
        lines = list(dump_batches(path, True, None, None, done))
    assert [line.kind for line in lines] == ["batch", "record", "batch", "record", "summary"]
    facts = lines[3].facts
    assert (facts["endTxnMarker"], facts["coordinatorEpoch"]) == ("COMMIT" if marker.commit else "ABORT", 4)


def test_a_guard_is_shared_by_a_producers_batches_and_removed_by_the_first_append() -> None:
    partition = make_partition(make_files())
    first = partition.guard(PRODUCER, 2, 7, adds=False)
    assert first.waits and partition.guard(PRODUCER, 2, 5, adds=False) is first
    assert partition.guard(PRODUCER, 2, 6, adds=False).lowest_sequence == 5
    assert partition.guard(PRODUCER, 1, 0, adds=False).lowest_sequence == 5  # an older epoch has no effect
    assert append_error_code(partition, first, epoch=2, sequence=6) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert partition.guard(PRODUCER, 3, 1, adds=True) is first
    assert (first.epoch, first.lowest_sequence, first.transaction_version) == (3, 1, 2)
    assert partition.guard(PRODUCER, 3, 0, adds=True) is first
    append(partition, first, epoch=3)
    assert len(partition.guards) == 0 and not OPEN.waits
    assert partition.guard(PRODUCER, 3, 1, adds=True) is OPEN
    append(partition, OPEN, epoch=3, sequence=1)
    partition.append_marker(PRODUCER, 4, COMMIT, 2, NOW_MS)
    assert append_error_code(partition, OPEN, epoch=4) is ErrorCode.INVALID_TXN_STATE
    with pytest.raises(KafkaError) as caught:
        partition.guard(PRODUCER, 3, 2, adds=True)
    assert caught.value.code is ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_marker_that_fails_to_be_written_removes_no_guard() -> None:
    files = make_files()
    partition = make_partition(files)
    guard = partition.guard(PRODUCER, 0, 0, adds=False)
    files.fault = lambda operation, path: OSError(28, "full", path) if operation == "append" else None
    with pytest.raises(KafkaError) as caught:
        partition.append_marker(PRODUCER, 0, ABORT, 0, NOW_MS)
    assert caught.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert append_error_code(partition, guard) is ErrorCode.KAFKA_STORAGE_ERROR
    files.fault = None
    append(partition, guard)
    partition.append_marker(PRODUCER, 0, ABORT, 0, NOW_MS)
    assert partition.last_stable_offset == 2


def test_coordinator_batches_without_sequences_are_guarded_too() -> None:
    partition = make_partition(make_files())
    for number in range(3):
        guard = partition.guard(PRODUCER, 0, -1, adds=False)
        assert guard.waits == (number != 1)
        append(partition, guard, sequence=-1, check_producer=False)
        if number == 1:
            partition.append_marker(PRODUCER, 0, COMMIT, 0, NOW_MS)
            assert append_error_code(partition, guard, sequence=-1) is ErrorCode.INVALID_TXN_STATE


def test_the_oldest_guard_is_removed_beyond_guards_max() -> None:
    guards = Guards()
    first = guards.begin(None, 0, 0, 0, 0, adds=True)
    for producer_id in range(1, GUARDS_MAX + 5):
        guards.begin(None, producer_id, 0, 0, 0, adds=True)
    assert len(guards) == GUARDS_MAX
    assert guards.begin(None, 0, 0, 0, 0, adds=True) is not first


class PendingBatch:
    """A batch of one epoch, from its arrival to its append."""

    def __init__(self, epoch: int, guard: Guard) -> None:
        self.epoch = epoch
        self.guard = guard
        self.allowed: bool | None = None


class TransactionModel:
    """One producer with its coordinator; their messages to the partition take any time and arrive in any order."""

    def __init__(self, adds: bool) -> None:
        self.adds = adds
        self.partition = make_partition(make_files())
        self.epoch = 0
        self.ongoing = self.added = False
        self.marker: int | None = None  # epoch of the marker in flight
        self.pending: list[PendingBatch] = []

    @property
    def is_open(self) -> bool:
        return self.partition.log.producers.first_undecided_offset is not None

    def begin(self) -> None:
        if self.marker is None and not self.ongoing:
            self.ongoing, self.added = True, not self.adds

    def arrive(self, age: int) -> None:
        epoch = max(0, self.epoch - age)
        try:
            guard = self.partition.guard(PRODUCER, epoch, 0, adds=self.adds)
        except KafkaError as error:
            assert error.code is ErrorCode.INVALID_PRODUCER_EPOCH
            return
        self.pending.append(PendingBatch(epoch, guard))
        if not guard.waits:
            self.pending[-1].allowed = True

    def verify(self, which: int) -> None:
        waiting = [one for one in self.pending if one.allowed is None]
        if waiting:
            one = waiting[which % len(waiting)]
            if self.ongoing and one.epoch == self.epoch:
                self.added = self.added or self.adds
                one.allowed = self.added
            elif self.marker is None:
                one.allowed = False  # otherwise verification is retried: the last transaction is still ending

    def append(self, which: int) -> None:
        allowed = [one for one in self.pending if one.allowed is not None]
        if allowed:
            one = allowed[which % len(allowed)]
            self.pending.remove(one)
            entry = self.partition.log.producers.entry(PRODUCER)
            sequence = 0 if entry is None or entry.epoch != one.epoch else entry.last_sequence + 1
            one.guard.lowest_sequence = max(one.guard.lowest_sequence, sequence)
            if one.allowed:
                try:
                    append(self.partition, one.guard, epoch=one.epoch, sequence=sequence)
                except KafkaError as error:
                    assert error.code in (ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_PRODUCER_EPOCH)

    def end(self) -> None:
        if self.ongoing:
            self.ongoing = False
            self.epoch += self.adds
            self.marker = self.epoch if self.added else None

    def mark(self, again: bool) -> None:
        if self.marker is not None:
            for _ in range(2 if again else 1):
                self.partition.append_marker(PRODUCER, self.marker, COMMIT, 2 if self.adds else 0, NOW_MS)
            self.marker = None

    def check(self) -> None:
        """Check that a transaction is open in the log only if the coordinator is going to end it."""
        assert not self.is_open or (self.ongoing and self.added) or self.marker is not None


@settings(deadline=None, max_examples=150)
@given(st.booleans(), st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=60))
def test_no_transaction_stays_open_unless_the_coordinator_will_end_it(adds: bool, steps: list[tuple[int, int]]) -> None:
    model = TransactionModel(adds)
    for kind, which in steps:
        if kind == 0:
            model.begin()
        elif kind == 1:
            model.arrive(which % 2)
        elif kind == 2:
            model.verify(which)
        elif kind == 3:
            model.append(which)
        elif kind == 4:
            model.end()
        else:
            model.mark(which % 2 == 1)
        model.check()
    model.end()
    model.mark(False)
    assert model.partition.last_stable_offset == model.partition.high_watermark == model.partition.log.log_end

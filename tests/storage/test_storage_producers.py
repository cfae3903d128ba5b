"""Producer state: the idempotence table, open transactions and producer snapshots."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.storage.storage_samples import NOW_MS, make_batch

from headrace.base.errors import CorruptData, ErrorCode, KafkaError
from headrace.records.batch import SEQUENCE_MAX, BatchHeader, read_header
from headrace.records.control import TransactionMarker
from headrace.storage.producer_snapshots import decode_snapshot, encode_snapshot
from headrace.storage.producer_state import AppendedBatch, ProducerState

PID = 7
COMMIT, ABORT = TransactionMarker(True, 0), TransactionMarker(False, 0)


def header(
    sequence: int, count: int = 1, epoch: int = 0, *, transactional: bool = False, pid: int = PID
) -> BatchHeader:
    batch = make_batch(1, producer_id=pid, producer_epoch=epoch, base_sequence=sequence, transactional=transactional)
    return read_header(batch)._replace(last_offset_delta=count - 1)


def state_after(*headers: BatchHeader) -> ProducerState:
    state = ProducerState()
    for one in headers:
        state.appended(one, state.end_offset, NOW_MS)
    return state


def check_error_code(state: ProducerState, incoming: BatchHeader, **options: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        state.check(incoming, **options)
    return caught.value.code


def test_the_next_sequence_is_accepted() -> None:
    state = state_after(header(0, 3))
    assert state.check(header(3)) is None


def test_only_the_last_five_batches_are_recognized_as_duplicates() -> None:
    state = state_after(*(header(2 * number, 2) for number in range(6)))
    for number in range(1, 6):
        assert state.check(header(2 * number, 2)) == AppendedBatch(
            2 * number, 2 * number + 1, 2 * number, 2 * number + 1, NOW_MS
        )
    assert check_error_code(state, header(0, 2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert check_error_code(state, header(2, 1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER  # not the same batch
    assert check_error_code(state, header(13)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequences_wrap_to_zero_after_the_largest() -> None:
    state = state_after(header(SEQUENCE_MAX))
    assert state.check(header(0)) is None
    assert check_error_code(state, header(1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    across = state_after(header(SEQUENCE_MAX - 1, 4))  # sequences MAX-1, MAX, 0, 1
    assert across.check(header(2)) is None
    found = across.check(header(SEQUENCE_MAX - 1, 4))
    assert found is not None and found.last_sequence == 1


def test_older_epochs_are_refused_and_a_new_epoch_starts_at_sequence_0() -> None:
    state = state_after(header(0, epoch=3))
    assert check_error_code(state, header(1, epoch=2)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert check_error_code(state, header(1, epoch=4)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert state.check(header(0, epoch=4)) is None
    state.appended(header(0, epoch=4), 1, NOW_MS)
    entry = state.entry(PID)
    assert entry is not None and len(entry.batches) == 1  # batches of the old epoch are forgotten
    assert check_error_code(state, header(1, epoch=3)) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_an_unknown_producer_may_start_at_any_sequence_before_transaction_version_2() -> None:
    state = ProducerState()
    assert state.check(header(41)) is None
    assert state.check(header(0), transaction_version=2) is None
    assert check_error_code(state, header(41), transaction_version=2) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_coordinator_batches_are_checked_for_their_epoch_but_not_their_sequence() -> None:
    state = state_after(header(5, epoch=2))
    assert state.check(header(-1, epoch=2), sequences=False) is None
    assert state.check(header(-1, epoch=3), sequences=False) is None
    with pytest.raises(KafkaError):
        state.check(header(-1, epoch=1), sequences=False)


def test_non_transactional_batches_are_refused_while_a_transaction_is_open() -> None:
    state = state_after(header(0, transactional=True))
    assert check_error_code(state, header(1)) == ErrorCode.INVALID_TXN_STATE
    assert state.check(header(1, transactional=True)) is None


def test_the_first_unstable_offset_waits_for_markers_and_for_the_high_watermark() -> None:
    one, two = header(0, 2, transactional=True), header(0, 2, transactional=True, pid=8)
    state = state_after(one, two)
    assert state.first_unstable_offset == state.first_undecided_offset == 0
    aborted = state.ended(one, ABORT, 4, NOW_MS)
    assert aborted is not None
    assert (aborted.producer_id, aborted.first_offset, aborted.last_offset, aborted.aborted) == (PID, 0, 4, True)
    assert aborted.last_stable_offset == 2
    assert (state.first_unstable_offset, state.first_undecided_offset) == (0, 2)
    state.high_watermark_advanced(4)  # not above the marker at 4
    assert state.first_unstable_offset == 0
    state.high_watermark_advanced(5)
    assert state.first_unstable_offset == 2
    committed = state.ended(two, COMMIT, 5, NOW_MS)
    assert committed is not None and not committed.aborted and committed.last_stable_offset == 6
    state.high_watermark_advanced(6)
    assert state.first_unstable_offset is None
    assert state.ended(two, COMMIT, 6, NOW_MS) is None  # no transaction was open


def test_markers_with_old_producer_or_coordinator_epochs_are_refused() -> None:
    state = state_after(header(0, epoch=5, transactional=True))
    marker = header(-1, epoch=5, transactional=True)
    state.check_marker(marker, COMMIT, transaction_version=0)
    with pytest.raises(KafkaError, match="INVALID_PRODUCER_EPOCH"):
        state.check_marker(header(-1, epoch=4), COMMIT)
    with pytest.raises(KafkaError, match="INVALID_PRODUCER_EPOCH"):
        state.check_marker(marker, COMMIT, transaction_version=2)  # version 2 requires a higher epoch
    state.check_marker(header(-1, epoch=6), COMMIT, transaction_version=2)
    state.ended(header(-1, epoch=6), TransactionMarker(True, 3), 1, NOW_MS)
    state.check_marker(header(-1, epoch=6), TransactionMarker(True, 3), transaction_version=2)  # a duplicate
    with pytest.raises(KafkaError, match="TRANSACTION_COORDINATOR_FENCED"):
        state.check_marker(header(-1, epoch=6), TransactionMarker(True, 2))


def test_idle_producers_expire_unless_a_transaction_is_open() -> None:
    state = state_after(header(0), header(0, transactional=True, pid=8))
    assert state.expire(NOW_MS + 99, 100) == []
    assert state.expire(NOW_MS + 100, 100) == [PID]
    assert state.entry(PID) is None and state.entry(8) is not None


def test_snapshots_keep_the_last_batch_of_each_producer() -> None:
    state = state_after(header(0, 3), header(3, 2), header(9, transactional=True, pid=8))
    state.ended(header(-1, epoch=1, pid=9), TransactionMarker(True, 4), 6, NOW_MS)
    restored = ProducerState()
    restored.reset(7, decode_snapshot(encode_snapshot(state.entries())))
    entry = restored.entry(PID)
    assert entry is not None and list(entry.batches) == [AppendedBatch(3, 4, 3, 4, NOW_MS)]
    assert restored.first_unstable_offset == 5
    marker_only = restored.entry(9)
    assert marker_only is not None
    assert (marker_only.epoch, marker_only.coordinator_epoch, len(marker_only.batches)) == (1, 4, 0)
    assert restored.check(header(0, epoch=1, pid=9)) is None


def test_an_empty_snapshot_is_ten_bytes() -> None:
    assert encode_snapshot([]).hex() == "000148674bc700000000"
    assert decode_snapshot(encode_snapshot([])) == []


@given(st.binary(max_size=120), st.integers(0, 119))
@settings(deadline=None, max_examples=200)
def test_garbage_and_damaged_snapshots_raise_corrupt_data(data: bytes, position: int) -> None:
    with pytest.raises(CorruptData):
        decode_snapshot(data)
    good = bytearray(encode_snapshot(state_after(header(0), header(0, pid=8)).entries()))
    good[position % len(good)] ^= 1 + position % 255
    with pytest.raises(CorruptData):
        decode_snapshot(bytes(good))


def test_an_unknown_producer_starts_at_any_sequence_unless_its_batches_may_be_lost() -> None:
    state = ProducerState()
    assert state.check(header(5)) is None
    state.must_start_at_zero = True
    assert check_error_code(state, header(5)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert state.check(header(5), sequences=False) is None
    assert state.check(header(0)) is None
    state.appended(header(0, 5), 0, NOW_MS)
    assert state.check(header(5)) is None

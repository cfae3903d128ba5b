"""Whole transactions: retries, zombies, late requests, exhausted epochs and two-phase commit."""

from __future__ import annotations

from typing import Any

import pytest
from tests.coordinators.transaction_harness import (
    FRESH,
    NAME,
    P0,
    P1,
    P2,
    PRODUCER,
    TIMEOUT_MS,
    TransactionHarness,
    add,
    end,
    init,
)

from headrace.base.errors import ErrorCode, KafkaError
from headrace.coordinators.transaction.fencing import FENCING_LOG_LINES_PER_SECOND
from headrace.coordinators.transaction.request import (
    Markers,
    MarkersWritten,
    ProducerIdNeeded,
    ProducerInitialized,
    TransactionEnded,
)
from headrace.coordinators.transaction.state import EPOCH_LAST, EPOCH_MAX, TWO_PHASE_TIMEOUT_MS
from headrace.coordinators.transaction.states import State

NONE = ErrorCode.NONE
FENCED = ErrorCode.PRODUCER_FENCED
BUSY = ErrorCode.CONCURRENT_TRANSACTIONS
INVALID = ErrorCode.INVALID_TXN_STATE
TWO_PHASE: dict[str, Any] = {"enable_two_phase_commit": True}


def open_transaction(version: int = 2, epoch: int = 0, **settings: Any) -> tuple[TransactionHarness, tuple[int, int]]:
    """Return a stage and its producer, which has a transaction with two partitions."""
    harness = TransactionHarness(version, **settings)
    if epoch:
        harness.put(producer_epoch=epoch - 1)
    harness.execute(init())
    harness.execute(add(harness.producer, P0, client_version=version))
    harness.execute(add(harness.producer, P1, client_version=version))
    return harness, harness.producer


# --- from beginning to end


@pytest.mark.parametrize("commit", [True, False])
def test_version_2_bumps_the_epoch_with_each_transaction(commit: bool) -> None:
    harness, producer = open_transaction()
    started_ms = harness.now_ms
    harness.pass_time(10)
    assert harness.execute(end(producer, commit)) == TransactionEnded(producer[0], 1)
    [markers] = harness.sent
    assert markers == Markers(NAME, producer[0], 1, commit, (P0, P1), 2, harness.shard.tables.prepared[NAME])
    assert harness.found.started_ms == started_ms and harness.found.updated_ms == harness.now_ms
    assert harness.code(add((producer[0], 1))) is BUSY
    harness.write_markers()
    assert harness.state is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT)
    assert harness.producer == (producer[0], 1)
    assert harness.code(add((producer[0], 1), P2)) is NONE
    assert harness.found.partitions == {P2} and harness.found.started_ms == harness.now_ms


@pytest.mark.parametrize("version", [0, 1])
def test_before_version_2_a_producer_keeps_its_epoch(version: int) -> None:
    harness, producer = open_transaction(version)
    for commit in (True, False):
        assert harness.execute(end(producer, commit, client_version=0)) == TransactionEnded()
        assert harness.sent[0].producer_epoch == 0 and harness.sent[0].transaction_version == 0
        harness.write_markers()
        assert harness.code(add(producer)) is NONE


def test_a_partition_that_is_added_twice_is_written_once() -> None:
    harness, producer = open_transaction()
    written = len(harness.journal.written)
    assert harness.execute(add(producer, P1, P0)).codes == {P0: NONE, P1: NONE}
    assert harness.execute(add(producer)).codes == {P0: NONE}
    assert len(harness.journal.written) == written


def test_verify_only_adds_no_partitions() -> None:
    harness, producer = open_transaction()
    response = harness.execute(add(producer, P0, P2, verify_only=True))
    assert response.codes == {P0: NONE, P2: ErrorCode.TRANSACTION_ABORTABLE}
    response = harness.execute(add(producer, P2, verify_only=True, version=4))
    assert response.codes == {P2: INVALID}
    assert harness.found.partitions == {P0, P1}
    harness.execute(end(producer))
    assert harness.code(add((producer[0], 1), P0, verify_only=True)) is BUSY
    harness.write_markers()
    response = harness.execute(add((producer[0], 1), P0, verify_only=True))
    assert response.codes == {P0: ErrorCode.TRANSACTION_ABORTABLE} and harness.state is State.COMPLETE_COMMIT


def test_aborting_an_empty_transaction_sends_no_markers() -> None:
    harness = TransactionHarness()
    harness.execute(init())
    for epoch in range(3):
        assert harness.execute(end((FRESH, epoch), False)) == TransactionEnded(FRESH, epoch + 1)
        assert harness.state is State.COMPLETE_ABORT and not harness.sent
    assert harness.states_written()[1:] == [State.PREPARE_ABORT, State.COMPLETE_ABORT] * 3


# --- repeated and late requests


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("moves", [True, False])
def test_a_repeated_end_gets_the_same_response(commit: bool, moves: bool) -> None:
    harness, producer = open_transaction()
    ended = harness.execute(end(producer, commit))
    if moves:
        harness.move()
        assert len(harness.sent) == 2 and harness.sent[0] == harness.sent[1]  # one from each coordinator
    assert harness.code(end(producer, commit)) is BUSY
    assert harness.code(end(producer, not commit)) is BUSY
    harness.write_markers()
    if moves:
        harness.move()
    written = len(harness.journal.written)
    assert harness.execute(end(producer, commit)) == ended
    assert harness.code(end(producer, not commit)) is INVALID
    assert len(harness.journal.written) == written and not harness.sent


@pytest.mark.parametrize("late_commits", [True, False])
def test_a_late_end_does_not_affect_the_next_transaction(late_commits: bool) -> None:
    """KAFKA-17754."""
    harness, producer = open_transaction()
    late = end(producer, late_commits)
    harness.execute(end(producer, late_commits))
    harness.write_markers()
    following = (producer[0], 1)
    harness.execute(add(following, P2))
    before = harness.found
    assert harness.code(late) is FENCED and harness.found == before
    harness.execute(end(following, not late_commits))
    assert harness.code(late) is BUSY
    assert [markers.commit for markers in harness.sent] == [not late_commits]
    harness.write_markers()
    assert harness.code(late) is FENCED


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("moves", [True, False])
def test_the_next_epoch_is_refused_as_concurrent_until_the_markers_are_written(commit: bool, moves: bool) -> None:
    """It has had its next epoch since the end was decided, and may use it at once."""
    harness, producer = open_transaction()
    ended = harness.execute(end(producer, commit))
    following = (ended.producer_id, ended.producer_epoch)
    if moves:
        harness.move()
    for request in (end(following, False), end(following, True), add(following, P2)):
        assert harness.code(request) is BUSY
    harness.write_markers()
    assert harness.execute(end(following, False)) == TransactionEnded(producer[0], ended.producer_epoch + 1)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("moves", [True, False])
def test_a_rotated_producer_id_is_refused_as_concurrent_until_the_markers_are_written(
    commit: bool, moves: bool
) -> None:
    harness, producer = open_transaction(epoch=EPOCH_LAST)
    assert harness.execute(end(producer, commit)) == TransactionEnded(FRESH, 0)
    if moves:
        harness.move()
    for request in (add((FRESH, 0), P2), end((FRESH, 0), False), init((FRESH, 0))):
        assert harness.code(request) is BUSY
    harness.write_markers()
    assert harness.code(add((FRESH, 0), P2)) is NONE


def test_fencing_logs_the_stale_producer_the_current_one_and_the_cause(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "headrace.coordinators.transaction.fencing")
    harness, producer = open_transaction()
    assert harness.code(init()) is BUSY
    harness.write_markers()
    harness.execute(init())
    assert harness.code(end(producer, False)) is FENCED
    aborting, refusing = caplog.messages
    assert f"producer id {producer[0]} epoch {producer[1]} of transactional id '{NAME}'" in aborting
    assert "InitProducerId while a transaction was open" in aborting
    assert f"transactional id '{NAME}': EndTransaction was sent by producer id {producer[0]} epoch 0" in refusing
    assert f"the current producer is {FRESH} epoch 2, because a producer called InitProducerId" in refusing
    harness.move()
    assert harness.code(end(producer, False)) is FENCED
    assert "before this coordinator loaded" in caplog.messages[-1]


def test_fenced_producers_write_a_bounded_number_of_log_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "headrace.coordinators.transaction.fencing")
    harness, producer = open_transaction()
    for _ in range(100):
        assert harness.code(end((producer[0], 9), False)) is FENCED
    assert len(caplog.messages) == FENCING_LOG_LINES_PER_SECOND
    harness.pass_time(1000)
    assert harness.code(end((producer[0], 9), False)) is FENCED
    assert caplog.messages[-1].endswith("(90 earlier lines were suppressed)")


def test_markers_of_an_earlier_transaction_do_not_complete_the_next() -> None:
    """Before version 2 both have the same producer id and epoch."""
    harness, producer = open_transaction(0)
    harness.execute(end(producer, client_version=0))
    [first] = harness.sent
    harness.write_markers()
    harness.execute(add(producer, P2))
    harness.execute(end(producer, False, client_version=0))
    assert harness.execute(first.written()) is None and harness.state is State.PREPARE_ABORT
    harness.write_markers()
    assert harness.state is State.COMPLETE_ABORT
    assert harness.execute(first.written()) is None and harness.state is State.COMPLETE_ABORT
    assert harness.execute(MarkersWritten("nobody", 1, 1, 1)) is None


# --- InitProducerId


def test_a_second_producer_aborts_the_transaction_of_the_first_and_fences_it() -> None:
    harness, zombie = open_transaction()
    assert harness.code(init()) is BUSY
    [markers] = harness.sent
    assert not markers.commit and markers.producer_epoch == 1 and markers.transaction_version == 2
    assert harness.code(init()) is BUSY
    harness.write_markers()
    assert harness.execute(init()) == ProducerInitialized(zombie[0], 2)
    for request in (add(zombie), end(zombie), end(zombie, False), end(zombie, False, 0), init(zombie)):
        assert harness.code(request) is FENCED
    assert harness.state is State.EMPTY


@pytest.mark.parametrize("version", [0, 2])
def test_fencing_takes_one_epoch_in_every_version(version: int) -> None:
    harness, producer = open_transaction(version)
    assert harness.code(init()) is BUSY
    assert harness.producer == (producer[0], 1)
    harness.write_markers()
    assert harness.execute(init()) == ProducerInitialized(producer[0], 2)


def test_a_repeated_init_after_an_error_bumps_the_epoch_once() -> None:
    harness = TransactionHarness()
    harness.execute(init())
    first = ProducerInitialized(FRESH, 1)
    assert harness.execute(init((FRESH, 0))) == first
    assert harness.execute(init((FRESH, 0))) == first  # its response was lost
    assert harness.execute(init()) == ProducerInitialized(FRESH, 2)  # another producer
    assert harness.code(init((FRESH, 0))) is FENCED
    assert harness.code(init((FRESH, 1))) is FENCED
    assert harness.execute(init((FRESH, 2))) == ProducerInitialized(FRESH, 3)


def test_init_accepts_the_previous_epoch_after_a_lost_end_response() -> None:
    harness, producer = open_transaction()
    harness.execute(end(producer))
    harness.write_markers()
    assert harness.execute(init(producer)) == ProducerInitialized(producer[0], 1)


def test_a_late_init_does_not_abort_the_transaction_of_its_successor() -> None:
    """Kafka refuses the zombie too, but only after the abort."""
    harness = TransactionHarness()
    harness.execute(init())
    harness.execute(init())
    harness.execute(add((FRESH, 1)))
    before = harness.found
    assert harness.code(init((FRESH, 0))) is FENCED
    assert harness.found == before and not harness.sent
    assert harness.code(init((FRESH, 1))) is BUSY and harness.state is State.PREPARE_ABORT


@pytest.mark.parametrize("state", [State.ONGOING, State.COMPLETE_ABORT])
def test_init_with_a_superseded_epoch_is_fenced(state: State) -> None:
    harness, producer = open_transaction()
    harness.execute(end(producer))
    harness.write_markers()
    harness.execute(add((producer[0], 1)))
    if state is State.COMPLETE_ABORT:
        harness.pass_time(2 * TIMEOUT_MS)
        harness.write_markers()
    assert harness.state is state
    for epoch in (0, 1) if state is State.COMPLETE_ABORT else (0,):
        assert harness.code(init((producer[0], epoch))) is FENCED


def test_init_refuses_invalid_timeouts_producers_and_two_phase_commit() -> None:
    harness = TransactionHarness(transaction_max_timeout_ms=1000)
    for timeout_ms in (0, -1, 1001):
        assert harness.code(init(timeout_ms=timeout_ms)) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert harness.code(init((-1, 3), timeout_ms=1)) is ErrorCode.INVALID_REQUEST
    assert harness.code(init((3, -1), timeout_ms=1)) is ErrorCode.INVALID_REQUEST
    assert harness.code(init(timeout_ms=1, **TWO_PHASE)) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert harness.code(init(timeout_ms=1, keep_prepared=True)) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert harness.found is None
    assert harness.code(init(timeout_ms=1000)) is NONE and harness.found.timeout_ms == 1000  # type: ignore[attr-defined]
    assert harness.code(init(timeout_ms=1)) is NONE and harness.found.timeout_ms == 1  # type: ignore[attr-defined]


# --- exhausted epochs


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("moves", [True, False])
def test_ending_a_transaction_at_the_last_epoch_rotates_the_producer_id(commit: bool, moves: bool) -> None:
    harness, producer = open_transaction(epoch=EPOCH_LAST)
    assert producer == (PRODUCER, EPOCH_LAST)
    before = harness.found
    with pytest.raises(ProducerIdNeeded):
        harness.execute(end(producer, commit, fresh=-1))
    assert harness.found == before
    ended = harness.execute(end(producer, commit))
    assert ended == TransactionEnded(FRESH, 0)
    assert (harness.sent[0].producer_id, harness.sent[0].producer_epoch) == (PRODUCER, EPOCH_MAX)
    if moves:
        harness.move()
    assert harness.code(end(producer, commit)) is BUSY
    harness.write_markers()
    if moves:
        harness.move()
    assert harness.producer == (FRESH, 0)
    assert harness.execute(end(producer, commit, fresh=FRESH + 1)) == ended
    assert harness.code(end(producer, not commit)) is INVALID
    assert harness.code(add((FRESH, 0))) is NONE
    assert harness.code(end(producer, commit)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_init_rotates_the_producer_id_when_epochs_are_exhausted() -> None:
    harness = TransactionHarness()
    harness.put(producer_epoch=EPOCH_LAST)
    with pytest.raises(ProducerIdNeeded):
        harness.execute(init(fresh=-1))
    rotated = ProducerInitialized(FRESH, 0)
    assert harness.execute(init((PRODUCER, EPOCH_LAST))) == rotated
    assert harness.execute(init((PRODUCER, EPOCH_LAST), fresh=FRESH + 1)) == rotated  # its response was lost
    assert harness.execute(init()) == ProducerInitialized(FRESH, 1)
    assert harness.code(init((PRODUCER, EPOCH_LAST))) is FENCED


def test_rotation_by_another_producer_fences_the_one_at_the_last_epoch() -> None:
    harness = TransactionHarness()
    harness.put(producer_epoch=EPOCH_LAST)
    assert harness.execute(init()) == ProducerInitialized(FRESH, 0)
    assert harness.code(init((PRODUCER, EPOCH_LAST))) is FENCED
    assert harness.code(end((PRODUCER, EPOCH_LAST), False)) is FENCED


def test_fencing_at_the_last_epoch_leaves_no_usable_higher_epoch() -> None:
    """KAFKA-20090."""
    harness, producer = open_transaction(epoch=EPOCH_LAST)
    assert harness.code(init()) is BUSY
    assert harness.producer == (PRODUCER, EPOCH_MAX)
    harness.write_markers()
    highest = (PRODUCER, EPOCH_MAX)
    for request in (end(producer, False), add(highest), end(highest, False), end(highest, False, 0)):
        assert harness.code(request) is FENCED
    assert harness.code(init(producer)) is FENCED
    assert harness.execute(init()) == ProducerInitialized(FRESH, 0)


def test_a_transaction_at_the_highest_epoch_can_be_aborted() -> None:
    """Kafka has written such transactions; a marker at this epoch is accepted only with an older version."""
    harness = TransactionHarness()
    harness.put(producer_epoch=EPOCH_MAX, state=State.ONGOING, partitions=frozenset({P0}), client_version=2)
    assert harness.code(init()) is BUSY
    assert (harness.sent[0].producer_epoch, harness.sent[0].transaction_version) == (EPOCH_MAX, 0)
    harness.write_markers()
    assert harness.execute(init()) == ProducerInitialized(FRESH, 0)


# --- two-phase commit


def kept(epoch: int = 0) -> tuple[TransactionHarness, tuple[int, int], ProducerInitialized]:
    harness = TransactionHarness(transaction_two_phase_commit_enable=True)
    if epoch:
        harness.put(producer_epoch=epoch - 1)
    harness.execute(init(**TWO_PHASE))
    producer = harness.producer
    harness.execute(add(producer, P0))
    return harness, producer, harness.execute(init(keep_prepared=True, **TWO_PHASE))


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("moves", [True, False])
def test_a_kept_transaction_is_ended_by_the_next_producer(commit: bool, moves: bool) -> None:
    harness, producer, response = kept()
    assert response == ProducerInitialized(FRESH, 1, FRESH, 0)
    assert harness.execute(init(keep_prepared=True, **TWO_PHASE)) == ProducerInitialized(FRESH, 2, FRESH, 0)
    if moves:
        harness.move()
    assert harness.state is State.ONGOING and not harness.sent
    for zombie in (producer, (FRESH, 1)):
        assert harness.code(add(zombie, P1)) is FENCED
        assert harness.code(end(zombie, commit)) is FENCED
    assert harness.code(add((FRESH, 2), P1)) is INVALID
    assert harness.execute(end((FRESH, 2), commit)) == TransactionEnded(FRESH, 3)
    assert (harness.sent[0].producer_id, harness.sent[0].producer_epoch, harness.sent[0].commit) == (FRESH, 1, commit)
    assert harness.code(end((FRESH, 2), commit)) is BUSY
    harness.write_markers()
    assert harness.producer == (FRESH, 3)
    assert harness.execute(end((FRESH, 2), commit)) == TransactionEnded(FRESH, 3)


def test_init_without_keep_prepared_aborts_the_transaction() -> None:
    harness, _, response = kept()
    assert harness.code(init()) is BUSY
    harness.write_markers()
    assert harness.code(end((FRESH, response.producer_epoch), False, 0)) is FENCED
    assert harness.execute(init()) == ProducerInitialized(FRESH, 3)


@pytest.mark.parametrize("epoch", [EPOCH_LAST - 1, EPOCH_LAST])
def test_a_transaction_is_kept_across_a_producer_id_rotation(epoch: int) -> None:
    harness, producer, response = kept(epoch)
    if epoch < EPOCH_LAST:
        assert response == ProducerInitialized(PRODUCER, EPOCH_LAST, *producer)
        successor = TransactionEnded(FRESH, 0)  # rotated by the end
    else:
        assert response == ProducerInitialized(FRESH, 0, *producer)
        successor = TransactionEnded(FRESH, 1)  # rotated by keeping it
    client = response.producer_id, response.producer_epoch
    assert harness.execute(end(client)) == successor
    assert (harness.sent[0].producer_id, harness.sent[0].producer_epoch) == (PRODUCER, epoch + 1)
    harness.write_markers()
    assert harness.execute(end(client)) == successor


def test_keep_prepared_is_refused_without_a_two_phase_transaction() -> None:
    harness = TransactionHarness(transaction_two_phase_commit_enable=True)
    assert harness.code(init((1, 1), keep_prepared=True)) is ErrorCode.INVALID_REQUEST
    assert harness.execute(init(keep_prepared=True)) == ProducerInitialized(FRESH, 0)  # there is no transaction to keep
    harness.execute(add((FRESH, 0)))
    assert harness.code(init(keep_prepared=True, **TWO_PHASE)) is INVALID  # it has a timeout
    harness.execute(end((FRESH, 0)))
    assert harness.code(init(keep_prepared=True, **TWO_PHASE)) is BUSY
    harness.version = 1
    assert harness.code(init(keep_prepared=True, **TWO_PHASE)) is ErrorCode.UNSUPPORTED_VERSION


def test_a_kept_transaction_survives_a_transaction_version_downgrade() -> None:
    harness, _, _ = kept()
    harness.version = 0
    harness.move()
    harness.execute(end((FRESH, 1), client_version=0))
    harness.move()
    del harness.sent[:1]
    harness.write_markers()
    assert harness.state is State.COMPLETE_COMMIT and harness.producer == (FRESH, 1)


def test_two_phase_transactions_have_no_timeout() -> None:
    harness = TransactionHarness(transaction_two_phase_commit_enable=True)
    harness.execute(init(timeout_ms=-1, **TWO_PHASE))
    assert harness.found.timeout_ms == TWO_PHASE_TIMEOUT_MS
    harness.execute(add((FRESH, 0)))
    harness.pass_time(2 * TWO_PHASE_TIMEOUT_MS // 1000)
    assert harness.state is State.ONGOING


def test_failed_requests_change_no_state() -> None:
    harness, producer = open_transaction()
    before, written = harness.found, len(harness.journal.written)
    for request in (add((producer[0], 9)), end((producer[0], 9)), init(timeout_ms=0)):
        with pytest.raises(KafkaError):
            harness.execute(request)
    assert harness.found == before and len(harness.journal.written) == written

"""Whole transactions: retries, zombies, late requests, exhausted epochs and two-phase commit."""

import pytest
from transaction_stage import FRESH, NAME, P0, P1, P2, PRODUCER, TIMEOUT_MS, Stage, add, end, init

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
TWO_PHASE = {"enable_two_phase_commit": True}


def began(version=2, epoch=0, **settings):
    """Return a stage and its producer, which has a transaction with two partitions."""
    stage = Stage(version, **settings)
    if epoch:
        stage.put(producer_epoch=epoch - 1)
    stage.ask(init())
    stage.ask(add(stage.producer, P0, client_version=version))
    stage.ask(add(stage.producer, P1, client_version=version))
    return stage, stage.producer


# --- from beginning to end


@pytest.mark.parametrize("commit", [True, False])
def test_with_version_2_each_transaction_has_an_epoch_of_its_own(commit):
    stage, producer = began()
    started_ms = stage.now_ms
    stage.pass_time(10)
    assert stage.ask(end(producer, commit)) == TransactionEnded(producer[0], 1)
    [markers] = stage.sent
    assert markers == Markers(NAME, producer[0], 1, commit, (P0, P1), 2, stage.shard.tables.prepared[NAME])
    assert stage.found.started_ms == started_ms and stage.found.updated_ms == stage.now_ms
    assert stage.code(add((producer[0], 1))) is BUSY
    stage.write_markers()
    assert stage.state is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT)
    assert stage.producer == (producer[0], 1)
    assert stage.code(add((producer[0], 1), P2)) is NONE
    assert stage.found.partitions == {P2} and stage.found.started_ms == stage.now_ms


@pytest.mark.parametrize("version", [0, 1])
def test_before_version_2_a_producer_keeps_its_epoch(version):
    stage, producer = began(version)
    for commit in (True, False):
        assert stage.ask(end(producer, commit, client_version=0)) == TransactionEnded()
        assert stage.sent[0].producer_epoch == 0 and stage.sent[0].transaction_version == 0
        stage.write_markers()
        assert stage.code(add(producer)) is NONE


def test_a_partition_that_is_added_twice_is_written_once():
    stage, producer = began()
    written = len(stage.journal.written)
    assert stage.ask(add(producer, P1, P0)).codes == {P0: NONE, P1: NONE}
    assert stage.ask(add(producer)).codes == {P0: NONE}
    assert len(stage.journal.written) == written


def test_verifying_adds_nothing():
    stage, producer = began()
    answer = stage.ask(add(producer, P0, P2, verify_only=True))
    assert answer.codes == {P0: NONE, P2: ErrorCode.TRANSACTION_ABORTABLE}
    answer = stage.ask(add(producer, P2, verify_only=True, version=4))
    assert answer.codes == {P2: INVALID}
    assert stage.found.partitions == {P0, P1}
    stage.ask(end(producer))
    assert stage.code(add((producer[0], 1), P0, verify_only=True)) is BUSY
    stage.write_markers()
    answer = stage.ask(add((producer[0], 1), P0, verify_only=True))
    assert answer.codes == {P0: ErrorCode.TRANSACTION_ABORTABLE} and stage.state is State.COMPLETE_COMMIT


def test_an_abort_of_nothing_needs_no_markers():
    stage = Stage()
    stage.ask(init())
    for epoch in range(3):
        assert stage.ask(end((FRESH, epoch), False)) == TransactionEnded(FRESH, epoch + 1)
        assert stage.state is State.COMPLETE_ABORT and not stage.sent
    assert stage.states_written()[1:] == [State.PREPARE_ABORT, State.COMPLETE_ABORT] * 3


# --- repeated and late requests


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("moves", [True, False])
def test_an_end_that_is_asked_again_is_answered_alike(commit, moves):
    stage, producer = began()
    ended = stage.ask(end(producer, commit))
    if moves:
        stage.move()
        assert len(stage.sent) == 2 and stage.sent[0] == stage.sent[1]  # one from each coordinator
    assert stage.code(end(producer, commit)) is BUSY
    assert stage.code(end(producer, not commit)) is BUSY
    stage.write_markers()
    if moves:
        stage.move()
    written = len(stage.journal.written)
    assert stage.ask(end(producer, commit)) == ended
    assert stage.code(end(producer, not commit)) is INVALID
    assert len(stage.journal.written) == written and not stage.sent


@pytest.mark.parametrize("late_commits", [True, False])
def test_a_late_end_does_not_touch_the_next_transaction(late_commits):
    """KAFKA-17754."""
    stage, producer = began()
    late = end(producer, late_commits)
    stage.ask(end(producer, late_commits))
    stage.write_markers()
    following = (producer[0], 1)
    stage.ask(add(following, P2))
    before = stage.found
    assert stage.code(late) is FENCED and stage.found == before
    stage.ask(end(following, not late_commits))
    assert stage.code(late) is BUSY
    assert [markers.commit for markers in stage.sent] == [not late_commits]
    stage.write_markers()
    assert stage.code(late) is FENCED


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("moves", [True, False])
def test_a_producer_that_ends_its_next_transaction_before_the_markers_are_written_is_not_fenced(commit, moves):
    """It has had its next epoch since the end was decided, and may use it at once."""
    stage, producer = began()
    ended = stage.ask(end(producer, commit))
    following = (ended.producer_id, ended.producer_epoch)
    if moves:
        stage.move()
    for request in (end(following, False), end(following, True), add(following, P2)):
        assert stage.code(request) is BUSY
    stage.write_markers()
    assert stage.ask(end(following, False)) == TransactionEnded(producer[0], ended.producer_epoch + 1)


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("moves", [True, False])
def test_a_producer_whose_id_rotates_may_use_the_new_id_before_the_markers_are_written(commit, moves):
    stage, producer = began(epoch=EPOCH_LAST)
    assert stage.ask(end(producer, commit)) == TransactionEnded(FRESH, 0)
    if moves:
        stage.move()
    for request in (add((FRESH, 0), P2), end((FRESH, 0), False), init((FRESH, 0))):
        assert stage.code(request) is BUSY
    stage.write_markers()
    assert stage.code(add((FRESH, 0), P2)) is NONE


def test_a_fenced_producer_is_logged_with_its_epoch_the_current_one_and_the_cause(caplog):
    caplog.set_level("INFO", "headrace.coordinators.transaction.fencing")
    stage, producer = began()
    assert stage.code(init()) is BUSY
    stage.write_markers()
    stage.ask(init())
    assert stage.code(end(producer, False)) is FENCED
    aborting, refusing = caplog.messages
    assert f"producer id {producer[0]} epoch {producer[1]} of transactional id '{NAME}'" in aborting
    assert "InitProducerId while a transaction was open" in aborting
    assert f"transactional id '{NAME}': EndTransaction came from producer id {producer[0]} epoch 0" in refusing
    assert f"the current producer is {FRESH} epoch 2, because a producer called InitProducerId" in refusing
    stage.move()
    assert stage.code(end(producer, False)) is FENCED
    assert "before this coordinator loaded" in caplog.messages[-1]


def test_fenced_producers_write_a_bounded_number_of_log_lines(caplog):
    caplog.set_level("INFO", "headrace.coordinators.transaction.fencing")
    stage, producer = began()
    for _ in range(100):
        assert stage.code(end((producer[0], 9), False)) is FENCED
    assert len(caplog.messages) == FENCING_LOG_LINES_PER_SECOND
    stage.pass_time(1000)
    assert stage.code(end((producer[0], 9), False)) is FENCED
    assert caplog.messages[-1].endswith("(90 earlier lines were suppressed)")


def test_markers_of_an_earlier_transaction_do_not_complete_the_next():
    """Before version 2 both have the same producer id and epoch."""
    stage, producer = began(0)
    stage.ask(end(producer, client_version=0))
    [first] = stage.sent
    stage.write_markers()
    stage.ask(add(producer, P2))
    stage.ask(end(producer, False, client_version=0))
    assert stage.ask(first.written()) is None and stage.state is State.PREPARE_ABORT
    stage.write_markers()
    assert stage.state is State.COMPLETE_ABORT
    assert stage.ask(first.written()) is None and stage.state is State.COMPLETE_ABORT
    assert stage.ask(MarkersWritten("nobody", 1, 1, 1)) is None


# --- InitProducerId


def test_a_second_producer_aborts_the_transaction_of_the_first_and_fences_it():
    stage, zombie = began()
    assert stage.code(init()) is BUSY
    [markers] = stage.sent
    assert not markers.commit and markers.producer_epoch == 1 and markers.transaction_version == 2
    assert stage.code(init()) is BUSY
    stage.write_markers()
    assert stage.ask(init()) == ProducerInitialized(zombie[0], 2)
    for request in (add(zombie), end(zombie), end(zombie, False), end(zombie, False, 0), init(zombie)):
        assert stage.code(request) is FENCED
    assert stage.state is State.EMPTY


@pytest.mark.parametrize("version", [0, 2])
def test_fencing_takes_one_epoch_in_every_version(version):
    stage, producer = began(version)
    assert stage.code(init()) is BUSY
    assert stage.producer == (producer[0], 1)
    stage.write_markers()
    assert stage.ask(init()) == ProducerInitialized(producer[0], 2)


def test_a_producer_that_goes_on_after_an_error_gets_the_next_epoch_once():
    stage = Stage()
    stage.ask(init())
    first = ProducerInitialized(FRESH, 1)
    assert stage.ask(init((FRESH, 0))) == first
    assert stage.ask(init((FRESH, 0))) == first  # its response was lost
    assert stage.ask(init()) == ProducerInitialized(FRESH, 2)  # another producer
    assert stage.code(init((FRESH, 0))) is FENCED
    assert stage.code(init((FRESH, 1))) is FENCED
    assert stage.ask(init((FRESH, 2))) == ProducerInitialized(FRESH, 3)


def test_a_producer_whose_end_was_not_answered_may_initialize_with_the_epoch_it_knows():
    stage, producer = began()
    stage.ask(end(producer))
    stage.write_markers()
    assert stage.ask(init(producer)) == ProducerInitialized(producer[0], 1)


def test_a_late_init_does_not_abort_the_transaction_of_its_successor():
    """Kafka refuses the zombie too, but only after the abort."""
    stage = Stage()
    stage.ask(init())
    stage.ask(init())
    stage.ask(add((FRESH, 1)))
    before = stage.found
    assert stage.code(init((FRESH, 0))) is FENCED
    assert stage.found == before and not stage.sent
    assert stage.code(init((FRESH, 1))) is BUSY and stage.state is State.PREPARE_ABORT


@pytest.mark.parametrize("state", [State.ONGOING, State.COMPLETE_ABORT])
def test_an_epoch_that_was_fenced_since_is_nobodys(state):
    stage, producer = began()
    stage.ask(end(producer))
    stage.write_markers()
    stage.ask(add((producer[0], 1)))
    if state is State.COMPLETE_ABORT:
        stage.pass_time(2 * TIMEOUT_MS)
        stage.write_markers()
    assert stage.state is state
    for epoch in (0, 1) if state is State.COMPLETE_ABORT else (0,):
        assert stage.code(init((producer[0], epoch))) is FENCED


def test_what_init_refuses():
    stage = Stage(transaction_max_timeout_ms=1000)
    for timeout_ms in (0, -1, 1001):
        assert stage.code(init(timeout_ms=timeout_ms)) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert stage.code(init((-1, 3), timeout_ms=1)) is ErrorCode.INVALID_REQUEST
    assert stage.code(init((3, -1), timeout_ms=1)) is ErrorCode.INVALID_REQUEST
    assert stage.code(init(timeout_ms=1, **TWO_PHASE)) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert stage.code(init(timeout_ms=1, keep_prepared=True)) is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert stage.found is None
    assert stage.code(init(timeout_ms=1000)) is NONE and stage.found.timeout_ms == 1000
    assert stage.code(init(timeout_ms=1)) is NONE and stage.found.timeout_ms == 1


# --- exhausted epochs


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("moves", [True, False])
def test_a_producer_out_of_epochs_goes_on_with_another_id(commit, moves):
    stage, producer = began(epoch=EPOCH_LAST)
    assert producer == (PRODUCER, EPOCH_LAST)
    before = stage.found
    with pytest.raises(ProducerIdNeeded):
        stage.ask(end(producer, commit, fresh=-1))
    assert stage.found == before
    ended = stage.ask(end(producer, commit))
    assert ended == TransactionEnded(FRESH, 0)
    assert (stage.sent[0].producer_id, stage.sent[0].producer_epoch) == (PRODUCER, EPOCH_MAX)
    if moves:
        stage.move()
    assert stage.code(end(producer, commit)) is BUSY
    stage.write_markers()
    if moves:
        stage.move()
    assert stage.producer == (FRESH, 0)
    assert stage.ask(end(producer, commit, fresh=FRESH + 1)) == ended
    assert stage.code(end(producer, not commit)) is INVALID
    assert stage.code(add((FRESH, 0))) is NONE
    assert stage.code(end(producer, commit)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_init_rotates_the_id_when_epochs_run_out():
    stage = Stage()
    stage.put(producer_epoch=EPOCH_LAST)
    with pytest.raises(ProducerIdNeeded):
        stage.ask(init(fresh=-1))
    rotated = ProducerInitialized(FRESH, 0)
    assert stage.ask(init((PRODUCER, EPOCH_LAST))) == rotated
    assert stage.ask(init((PRODUCER, EPOCH_LAST), fresh=FRESH + 1)) == rotated  # its response was lost
    assert stage.ask(init()) == ProducerInitialized(FRESH, 1)
    assert stage.code(init((PRODUCER, EPOCH_LAST))) is FENCED


def test_rotation_for_somebody_else_fences_whoever_had_the_last_epoch():
    stage = Stage()
    stage.put(producer_epoch=EPOCH_LAST)
    assert stage.ask(init()) == ProducerInitialized(FRESH, 0)
    assert stage.code(init((PRODUCER, EPOCH_LAST))) is FENCED
    assert stage.code(end((PRODUCER, EPOCH_LAST), False)) is FENCED


def test_a_transaction_fenced_at_the_last_epoch_leaves_nobody_with_a_higher_one():
    """KAFKA-20090."""
    stage, producer = began(epoch=EPOCH_LAST)
    assert stage.code(init()) is BUSY
    assert stage.producer == (PRODUCER, EPOCH_MAX)
    stage.write_markers()
    highest = (PRODUCER, EPOCH_MAX)
    for request in (end(producer, False), add(highest), end(highest, False), end(highest, False, 0)):
        assert stage.code(request) is FENCED
    assert stage.code(init(producer)) is FENCED
    assert stage.ask(init()) == ProducerInitialized(FRESH, 0)


def test_a_transaction_that_was_left_at_the_highest_epoch_can_be_aborted():
    """Kafka has written such transactions; a marker at this epoch is accepted only with an older version."""
    stage = Stage()
    stage.put(producer_epoch=EPOCH_MAX, state=State.ONGOING, partitions=frozenset({P0}), client_version=2)
    assert stage.code(init()) is BUSY
    assert (stage.sent[0].producer_epoch, stage.sent[0].transaction_version) == (EPOCH_MAX, 0)
    stage.write_markers()
    assert stage.ask(init()) == ProducerInitialized(FRESH, 0)


# --- two-phase commit


def kept(epoch=0):
    stage = Stage(transaction_two_phase_commit_enable=True)
    if epoch:
        stage.put(producer_epoch=epoch - 1)
    stage.ask(init(**TWO_PHASE))
    producer = stage.producer
    stage.ask(add(producer, P0))
    return stage, producer, stage.ask(init(keep_prepared=True, **TWO_PHASE))


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("moves", [True, False])
def test_a_transaction_that_is_kept_is_ended_by_the_producer_that_comes_after(commit, moves):
    stage, producer, answer = kept()
    assert answer == ProducerInitialized(FRESH, 1, FRESH, 0)
    assert stage.ask(init(keep_prepared=True, **TWO_PHASE)) == ProducerInitialized(FRESH, 2, FRESH, 0)
    if moves:
        stage.move()
    assert stage.state is State.ONGOING and not stage.sent
    for zombie in (producer, (FRESH, 1)):
        assert stage.code(add(zombie, P1)) is FENCED
        assert stage.code(end(zombie, commit)) is FENCED
    assert stage.code(add((FRESH, 2), P1)) is INVALID
    assert stage.ask(end((FRESH, 2), commit)) == TransactionEnded(FRESH, 3)
    assert (stage.sent[0].producer_id, stage.sent[0].producer_epoch, stage.sent[0].commit) == (FRESH, 1, commit)
    assert stage.code(end((FRESH, 2), commit)) is BUSY
    stage.write_markers()
    assert stage.producer == (FRESH, 3)
    assert stage.ask(end((FRESH, 2), commit)) == TransactionEnded(FRESH, 3)


def test_whoever_does_not_keep_it_aborts_it():
    stage, _, answer = kept()
    assert stage.code(init()) is BUSY
    stage.write_markers()
    assert stage.code(end((FRESH, answer.producer_epoch), False, 0)) is FENCED
    assert stage.ask(init()) == ProducerInitialized(FRESH, 3)


@pytest.mark.parametrize("epoch", [EPOCH_LAST - 1, EPOCH_LAST])
def test_a_transaction_is_kept_while_ids_rotate(epoch):
    stage, producer, answer = kept(epoch)
    if epoch < EPOCH_LAST:
        assert answer == ProducerInitialized(PRODUCER, EPOCH_LAST, *producer)
        successor = TransactionEnded(FRESH, 0)  # rotated by the end
    else:
        assert answer == ProducerInitialized(FRESH, 0, *producer)
        successor = TransactionEnded(FRESH, 1)  # rotated by keeping it
    client = answer.producer_id, answer.producer_epoch
    assert stage.ask(end(client)) == successor
    assert (stage.sent[0].producer_id, stage.sent[0].producer_epoch) == (PRODUCER, epoch + 1)
    stage.write_markers()
    assert stage.ask(end(client)) == successor


def test_what_cannot_be_kept():
    stage = Stage(transaction_two_phase_commit_enable=True)
    assert stage.code(init((1, 1), keep_prepared=True)) is ErrorCode.INVALID_REQUEST
    assert stage.ask(init(keep_prepared=True)) == ProducerInitialized(FRESH, 0)  # there is no transaction to keep
    stage.ask(add((FRESH, 0)))
    assert stage.code(init(keep_prepared=True, **TWO_PHASE)) is INVALID  # it has a timeout
    stage.ask(end((FRESH, 0)))
    assert stage.code(init(keep_prepared=True, **TWO_PHASE)) is BUSY
    stage.version = 1
    assert stage.code(init(keep_prepared=True, **TWO_PHASE)) is ErrorCode.UNSUPPORTED_VERSION


def test_a_kept_transaction_survives_a_cluster_that_goes_back():
    stage, _, _ = kept()
    stage.version = 0
    stage.move()
    stage.ask(end((FRESH, 1), client_version=0))
    stage.move()
    del stage.sent[:1]
    stage.write_markers()
    assert stage.state is State.COMPLETE_COMMIT and stage.producer == (FRESH, 1)


def test_two_phase_transactions_have_no_timeout():
    stage = Stage(transaction_two_phase_commit_enable=True)
    stage.ask(init(timeout_ms=-1, **TWO_PHASE))
    assert stage.found.timeout_ms == TWO_PHASE_TIMEOUT_MS
    stage.ask(add((FRESH, 0)))
    stage.pass_time(2 * TWO_PHASE_TIMEOUT_MS // 1000)
    assert stage.state is State.ONGOING


def test_an_error_leaves_nothing_behind():
    stage, producer = began()
    before, written = stage.found, len(stage.journal.written)
    for request in (add((producer[0], 9)), end((producer[0], 9)), init(timeout_ms=0)):
        with pytest.raises(KafkaError):
            stage.ask(request)
    assert stage.found == before and len(stage.journal.written) == written

"""Timeouts and expiry, visibility for readers, and a journal that is late, refuses and is lost."""

import pytest
from transaction_stage import FRESH, NAME, P0, P1, TIMEOUT_MS, Stage, add, end, init

from headrace.base.errors import ErrorCode, KafkaError
from headrace.coordinators.transaction.expiry import LOOKED_AT_ONCE
from headrace.coordinators.transaction.reads import describe, list_transactions, unknown_states
from headrace.coordinators.transaction.request import Described, InitProducer, Listed, ListFilters, TransactionEnded
from headrace.coordinators.transaction.states import State
from headrace.statemachine.journal import NotLeader

CHECK_MS = 10_000
DAY_MS = 86_400_000
EXPIRY = {"transactional_id_expiration_ms": 2 * DAY_MS}
PRODUCER = (FRESH, 0)


def began(version=2, **settings):
    stage = Stage(version, **settings)
    stage.ask(init())
    stage.ask(add(PRODUCER, P0))
    return stage


# --- time


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_transaction_that_takes_too_long_is_aborted_at_the_next_epoch(version):
    stage = began(version)
    stage.pass_time(TIMEOUT_MS)
    assert stage.state is State.ONGOING
    stage.pass_time(CHECK_MS)
    assert stage.state is State.PREPARE_ABORT and stage.producer == (FRESH, 1)
    [markers] = stage.sent
    assert (markers.producer_epoch, markers.commit, markers.transaction_version) == (1, False, version)
    stage.write_markers()
    stage.pass_time(10 * TIMEOUT_MS)
    assert stage.state is State.COMPLETE_ABORT and not stage.sent
    for request in (add(PRODUCER), end(PRODUCER, client_version=0), end(PRODUCER, False, client_version=0)):
        assert stage.code(request) is ErrorCode.PRODUCER_FENCED


def test_a_producer_of_version_2_that_was_timed_out_goes_on_if_it_wanted_to_abort():
    stage = began()
    stage.pass_time(TIMEOUT_MS + CHECK_MS)
    for commit in (True, False):
        assert stage.code(end(PRODUCER, commit)) is ErrorCode.CONCURRENT_TRANSACTIONS
    stage.write_markers()
    assert stage.code(end(PRODUCER)) is ErrorCode.INVALID_TXN_STATE
    assert stage.ask(end(PRODUCER, False)) == TransactionEnded(FRESH, 1)


def test_a_transaction_is_as_old_as_its_first_partition_after_a_move_too():
    stage = began()
    stage.pass_time(TIMEOUT_MS - 1000)
    stage.ask(add(PRODUCER, P1))
    stage.move()
    stage.pass_time(2 * CHECK_MS)
    assert stage.state is State.PREPARE_ABORT


def test_a_timeout_that_cannot_be_written_is_tried_again():
    stage = began()
    stage.journal.refusal = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    stage.pass_time(TIMEOUT_MS + 2 * CHECK_MS)
    assert stage.state is State.ONGOING and stage.producer == PRODUCER and not stage.sent
    stage.journal.refusal = None
    stage.pass_time(1000)
    assert stage.state is State.PREPARE_ABORT and stage.producer == (FRESH, 1)


def test_every_transaction_is_looked_at():
    stage = Stage()
    count = 2 * LOOKED_AT_ONCE + 1
    for number in range(count):
        name = f"id-{number}"
        stage.ask(InitProducer(name, TIMEOUT_MS, fresh_producer_id=number))
        stage.ask(type(add(PRODUCER))(name, number, 0, (P0,)))
    stage.pass_time(TIMEOUT_MS + CHECK_MS + 10)
    assert {markers.transactional_id for markers in stage.sent} == {f"id-{number}" for number in range(count)}
    assert len(stage.sent) == count


@pytest.mark.parametrize("state", [State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT])
def test_an_id_that_is_not_used_is_forgotten(state):
    stage = Stage(**EXPIRY)
    stage.put(state=state, updated_ms=stage.now_ms)
    stage.pass_time(2 * DAY_MS - 1)
    assert stage.state is state
    stage.pass_time(DAY_MS)
    assert stage.found is None and stage.states_written()[-1] is None
    stage.move()
    assert stage.found is None
    assert stage.code(add(PRODUCER)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert stage.ask(init()).producer_id == FRESH


def test_an_id_that_is_in_use_is_not_forgotten():
    slow = {"transaction_abort_timed_out_transaction_cleanup_interval_ms": DAY_MS}
    stage = Stage(transaction_two_phase_commit_enable=True, **slow, **EXPIRY)
    stage.ask(init(enable_two_phase_commit=True))
    stage.ask(add(PRODUCER))
    stage.pass_time(30 * DAY_MS)
    assert stage.state is State.ONGOING
    stage.ask(end(PRODUCER))
    stage.pass_time(30 * DAY_MS)
    assert stage.state is State.PREPARE_COMMIT


def test_ids_are_forgotten_a_few_at_a_time():
    stage = Stage(**EXPIRY)
    for number in range(LOOKED_AT_ONCE + 1):
        stage.ask(InitProducer(f"id-{number}", 1, fresh_producer_id=number))
    for number in range(3):
        stage.ask(InitProducer(f"{number}" * 30_000, 1, fresh_producer_id=1000 + number))
    sizes, append = [], stage.journal.append
    stage.journal.append = lambda records: sizes.append(len(records)) or append(records)
    stage.pass_time(3 * DAY_MS)
    assert len(stage.shard.tables.all) == 0
    assert sizes == [LOOKED_AT_ONCE, 3, 1]


# --- readers


def test_readers_see_what_is_committed():
    stage = began()
    stage.journal.late = True
    stage.submit(end(PRODUCER))
    assert stage.state is State.PREPARE_COMMIT
    assert describe(stage.shard, NAME) == Described(NAME, State.ONGOING, TIMEOUT_MS, stage.now_ms, *PRODUCER, (P0,))
    assert list_transactions([stage.shard], ListFilters(), 0) == [Listed(NAME, FRESH, State.ONGOING)]
    stage.journal.commit()
    assert describe(stage.shard, NAME).state is State.PREPARE_COMMIT


def test_what_is_not_there_is_not_described():
    stage = Stage()
    for name, code in (("", ErrorCode.INVALID_REQUEST), ("none", ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)):
        with pytest.raises(KafkaError) as raised:
            describe(stage.shard, name)
        assert raised.value.code is code


@pytest.mark.parametrize(
    "filters, passes",
    [
        (ListFilters(), True),
        (ListFilters(states=frozenset({"Ongoing", "Empty"})), True),
        (ListFilters(states=frozenset({"Empty"})), False),
        (ListFilters(states=frozenset({"ongoing"})), False),
        (ListFilters(producer_ids=frozenset({FRESH, 1})), True),
        (ListFilters(producer_ids=frozenset({1})), False),
        (ListFilters(duration_ms=4999), True),
        (ListFilters(duration_ms=5000), False),
        (ListFilters(pattern=""), True),
        (ListFilters(pattern="pay.*"), True),
        (ListFilters(pattern="pay"), False),
    ],
)
def test_transactions_are_listed_by_filters(filters, passes):
    stage = began()
    stage.pass_time(5000)
    assert bool(list_transactions([stage.shard], filters, stage.now_ms)) == passes


def test_an_id_that_has_begun_nothing_passes_every_duration():
    """In Kafka 4.3 too, where its start time is -1."""
    stage = Stage()
    stage.ask(init())
    assert list_transactions([stage.shard], ListFilters(duration_ms=stage.now_ms), stage.now_ms)


def test_filters_that_make_no_sense():
    assert unknown_states(ListFilters(states=frozenset({"Dead", "PrepareEpochFence", "Asleep"}))) == ["Asleep"]
    with pytest.raises(KafkaError) as raised:
        list_transactions([], ListFilters(pattern="("), 0)
    assert raised.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


# --- the journal


def test_neither_answer_nor_markers_leave_before_the_commit():
    stage = began()
    stage.journal.late = True
    told = stage.submit(end(PRODUCER))
    again = stage.submit(end(PRODUCER))
    assert told == [] and stage.sent == [] and [error.code for error in again] == [ErrorCode.CONCURRENT_TRANSACTIONS]
    stage.journal.commit()
    assert told == [TransactionEnded(FRESH, 1)] and len(stage.sent) == 1


def test_whoever_is_told_to_come_back_is_told_when_the_abort_is_committed():
    stage = began()
    stage.journal.late = True
    told = stage.submit(init())
    assert told == [] and stage.sent == []
    stage.journal.commit()
    assert [error.code for error in told] == [ErrorCode.CONCURRENT_TRANSACTIONS] and len(stage.sent) == 1


def test_an_answer_that_rests_on_a_write_waits_for_it():
    stage = began()
    stage.journal.late = True
    told = [
        stage.submit(add(PRODUCER, P1)),
        stage.submit(add(PRODUCER, P1)),
        stage.submit(add(PRODUCER, P1, verify_only=True)),
    ]
    assert told == [[], [], []]
    stage.journal.commit()
    assert all(answer.codes == {P1: ErrorCode.NONE} for [answer] in told)


@pytest.mark.parametrize("request_", [end(PRODUCER), end(PRODUCER, False), init(), add(PRODUCER, P1)])
def test_a_write_that_is_refused_changes_nothing(request_):
    stage = began()
    before = stage.found
    stage.journal.refusal = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert stage.code(request_) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert stage.found == before and not stage.sent and not stage.shard.tables.prepared.keys()
    assert stage.shard.tables.ongoing.keys() == [NAME]


def test_a_refused_fence_takes_no_epochs():
    """KAFKA-9666."""
    stage = began()
    stage.journal.refusal = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    for _ in range(5):
        stage.code(init())
    stage.journal.refusal = None
    assert stage.code(init()) is ErrorCode.CONCURRENT_TRANSACTIONS and stage.producer == (FRESH, 1)


@pytest.mark.parametrize("request_", [end(PRODUCER), end(PRODUCER, False), init(), add(PRODUCER, P1)])
def test_what_is_not_committed_when_leadership_is_lost_never_was(request_):
    stage = began()
    before = stage.found
    stage.journal.late = True
    told = stage.submit(request_)
    stage.move()
    assert [type(error) for error in told] == [NotLeader] and stage.sent == []
    assert stage.found == before
    assert stage.code(end(PRODUCER)) is ErrorCode.NONE


def test_a_retry_of_init_that_meets_a_new_coordinator_is_refused():
    """As in Kafka, which does not store the previous epoch."""
    stage = Stage()
    stage.ask(init())
    stage.ask(init(PRODUCER))
    stage.move()
    assert stage.code(init(PRODUCER)) is ErrorCode.PRODUCER_FENCED


def test_a_new_leader_finishes_what_was_decided():
    stage = began()
    stage.ask(end(PRODUCER))
    lost = stage.sent.pop()
    stage.move()
    assert stage.sent == [lost]
    stage.journal.refusal = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert stage.code(lost.written()) is ErrorCode.NOT_ENOUGH_REPLICAS and stage.state is State.PREPARE_COMMIT
    stage.journal.refusal = None
    assert stage.ask(lost.written()) is None and stage.state is State.COMPLETE_COMMIT
    stage.move()
    assert stage.sent == [lost] and stage.state is State.COMPLETE_COMMIT


def test_a_new_leader_that_cannot_write_yet_still_begins():
    stage = Stage()
    stage.put(state=State.PREPARE_ABORT, started_ms=1, updated_ms=1)  # an abort without partitions, as Kafka writes it
    [markers] = stage.sent
    assert markers.partitions == () and stage.runtime.next_timer() is not None
    stage.write_markers()
    assert stage.state is State.COMPLETE_ABORT

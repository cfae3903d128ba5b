"""Timeouts and expiry, visibility for readers, and a journal that is late, refuses and is lost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from tests.coordinators.transaction_harness import FRESH, NAME, P0, P1, TIMEOUT_MS, TransactionHarness, add, end, init

from headrace.base.errors import ErrorCode, KafkaError
from headrace.coordinators.transaction.expiry import EXAMINED_PER_TURN
from headrace.coordinators.transaction.reads import describe, list_transactions, unknown_states
from headrace.coordinators.transaction.request import (
    Described,
    InitProducer,
    Listed,
    ListFilters,
    TransactionEnded,
)
from headrace.coordinators.transaction.states import State
from headrace.statemachine.journal import NotLeader

CHECK_MS = 10_000
DAY_MS = 86_400_000
EXPIRY = {"transactional_id_expiration_ms": 2 * DAY_MS}
PRODUCER = (FRESH, 0)


def open_transaction(version: int = 2, **settings: Any) -> TransactionHarness:
    harness = TransactionHarness(version, **settings)
    harness.execute(init())
    harness.execute(add(PRODUCER, P0))
    return harness


# --- time


@pytest.mark.parametrize("version", [0, 1, 2])
def test_a_timed_out_transaction_is_aborted_with_the_next_epoch(version: int) -> None:
    harness = open_transaction(version)
    harness.pass_time(TIMEOUT_MS)
    assert harness.state is State.ONGOING
    harness.pass_time(CHECK_MS)
    assert harness.state is State.PREPARE_ABORT and harness.producer == (FRESH, 1)
    [markers] = harness.sent
    assert (markers.producer_epoch, markers.commit, markers.transaction_version) == (1, False, version)
    harness.write_markers()
    harness.pass_time(10 * TIMEOUT_MS)
    assert harness.state is State.COMPLETE_ABORT and not harness.sent
    for request in (add(PRODUCER), end(PRODUCER, client_version=0), end(PRODUCER, False, client_version=0)):
        assert harness.code(request) is ErrorCode.PRODUCER_FENCED


def test_a_version_2_producer_may_abort_but_not_commit_its_timed_out_transaction() -> None:
    harness = open_transaction()
    harness.pass_time(TIMEOUT_MS + CHECK_MS)
    for commit in (True, False):
        assert harness.code(end(PRODUCER, commit)) is ErrorCode.CONCURRENT_TRANSACTIONS
    harness.write_markers()
    assert harness.code(end(PRODUCER)) is ErrorCode.INVALID_TXN_STATE
    assert harness.execute(end(PRODUCER, False)) == TransactionEnded(FRESH, 1)


def test_the_timeout_runs_from_the_first_partition_even_after_a_coordinator_move() -> None:
    harness = open_transaction()
    harness.pass_time(TIMEOUT_MS - 1000)
    harness.execute(add(PRODUCER, P1))
    harness.move()
    harness.pass_time(2 * CHECK_MS)
    assert harness.state is State.PREPARE_ABORT


def test_a_timeout_is_retried_after_a_refused_write() -> None:
    harness = open_transaction()
    harness.journal.refusal = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    harness.pass_time(TIMEOUT_MS + 2 * CHECK_MS)
    assert harness.state is State.ONGOING and harness.producer == PRODUCER and not harness.sent
    harness.journal.refusal = None
    harness.pass_time(1000)
    assert harness.state is State.PREPARE_ABORT and harness.producer == (FRESH, 1)


def test_all_timed_out_transactions_are_aborted() -> None:
    harness = TransactionHarness()
    count = 2 * EXAMINED_PER_TURN + 1
    for number in range(count):
        name = f"id-{number}"
        harness.execute(InitProducer(name, TIMEOUT_MS, fresh_producer_id=number))
        harness.execute(type(add(PRODUCER))(name, number, 0, (P0,)))
    harness.pass_time(TIMEOUT_MS + CHECK_MS + 10)
    assert {markers.transactional_id for markers in harness.sent} == {f"id-{number}" for number in range(count)}
    assert len(harness.sent) == count


@pytest.mark.parametrize("state", [State.EMPTY, State.COMPLETE_COMMIT, State.COMPLETE_ABORT])
def test_an_unused_transactional_id_expires(state: State) -> None:
    harness = TransactionHarness(**EXPIRY)
    harness.put(state=state, updated_ms=harness.now_ms)
    harness.pass_time(2 * DAY_MS - 1)
    assert harness.state is state
    harness.pass_time(DAY_MS)
    assert harness.found is None and harness.states_written()[-1] is None
    harness.move()
    assert harness.found is None
    assert harness.code(add(PRODUCER)) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert harness.execute(init()).producer_id == FRESH


def test_a_transactional_id_with_an_open_transaction_does_not_expire() -> None:
    slow = {"transaction_abort_timed_out_transaction_cleanup_interval_ms": DAY_MS}
    harness = TransactionHarness(transaction_two_phase_commit_enable=True, **slow, **EXPIRY)
    harness.execute(init(enable_two_phase_commit=True))
    harness.execute(add(PRODUCER))
    harness.pass_time(30 * DAY_MS)
    assert harness.state is State.ONGOING
    harness.execute(end(PRODUCER))
    harness.pass_time(30 * DAY_MS)
    assert harness.state is State.PREPARE_COMMIT


def test_transactional_ids_expire_in_limited_batches() -> None:
    harness = TransactionHarness(**EXPIRY)
    for number in range(EXAMINED_PER_TURN + 1):
        harness.execute(InitProducer(f"id-{number}", 1, fresh_producer_id=number))
    for number in range(3):
        harness.execute(InitProducer(f"{number}" * 30_000, 1, fresh_producer_id=1000 + number))
    sizes: list[int] = []
    append = harness.journal.append

    def append_and_count(records: Sequence[Any]) -> int:
        sizes.append(len(records))
        return append(records)

    harness.journal.append = append_and_count
    harness.pass_time(3 * DAY_MS)
    assert len(harness.shard.tables.all) == 0
    assert sizes == [EXAMINED_PER_TURN, 3, 1]


# --- readers


def test_describe_and_list_show_only_committed_state() -> None:
    harness = open_transaction()
    harness.journal.late = True
    harness.submit(end(PRODUCER))
    assert harness.state is State.PREPARE_COMMIT
    assert describe(harness.shard, NAME) == Described(NAME, State.ONGOING, TIMEOUT_MS, harness.now_ms, *PRODUCER, (P0,))
    assert list_transactions([harness.shard], ListFilters(), 0) == [Listed(NAME, FRESH, State.ONGOING)]
    harness.journal.commit()
    assert describe(harness.shard, NAME).state is State.PREPARE_COMMIT


def test_describing_an_empty_or_unknown_transactional_id_raises() -> None:
    harness = TransactionHarness()
    for name, code in (("", ErrorCode.INVALID_REQUEST), ("none", ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)):
        with pytest.raises(KafkaError) as raised:
            describe(harness.shard, name)
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
def test_transactions_are_listed_by_filters(filters: ListFilters, passes: bool) -> None:
    harness = open_transaction()
    harness.pass_time(5000)
    assert bool(list_transactions([harness.shard], filters, harness.now_ms)) == passes


def test_a_transactional_id_without_a_transaction_passes_every_duration_filter() -> None:
    """Match Kafka 4.3, where its start time is -1."""
    harness = TransactionHarness()
    harness.execute(init())
    assert list_transactions([harness.shard], ListFilters(duration_ms=harness.now_ms), harness.now_ms)


def test_invalid_list_filters_are_detected() -> None:
    assert unknown_states(ListFilters(states=frozenset({"Dead", "PrepareEpochFence", "Asleep"}))) == ["Asleep"]
    with pytest.raises(KafkaError) as raised:
        list_transactions([], ListFilters(pattern="("), 0)
    assert raised.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


# --- the journal


def test_responses_and_markers_are_not_sent_before_the_commit() -> None:
    harness = open_transaction()
    harness.journal.late = True
    responses = harness.submit(end(PRODUCER))
    again = harness.submit(end(PRODUCER))
    assert (
        responses == []
        and harness.sent == []
        and [error.code for error in again] == [ErrorCode.CONCURRENT_TRANSACTIONS]
    )
    harness.journal.commit()
    assert responses == [TransactionEnded(FRESH, 1)] and len(harness.sent) == 1


def test_concurrent_transactions_is_sent_only_after_the_abort_is_committed() -> None:
    harness = open_transaction()
    harness.journal.late = True
    responses = harness.submit(init())
    assert responses == [] and harness.sent == []
    harness.journal.commit()
    assert [error.code for error in responses] == [ErrorCode.CONCURRENT_TRANSACTIONS] and len(harness.sent) == 1


def test_responses_that_depend_on_a_pending_write_wait_for_it() -> None:
    harness = open_transaction()
    harness.journal.late = True
    responses = [
        harness.submit(add(PRODUCER, P1)),
        harness.submit(add(PRODUCER, P1)),
        harness.submit(add(PRODUCER, P1, verify_only=True)),
    ]
    assert responses == [[], [], []]
    harness.journal.commit()
    assert all(response.codes == {P1: ErrorCode.NONE} for [response] in responses)


@pytest.mark.parametrize("request_", [end(PRODUCER), end(PRODUCER, False), init(), add(PRODUCER, P1)])
def test_a_refused_write_changes_nothing(request_: Any) -> None:
    harness = open_transaction()
    before = harness.found
    harness.journal.refusal = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert harness.code(request_) is ErrorCode.NOT_ENOUGH_REPLICAS
    assert harness.found == before and not harness.sent and not harness.shard.tables.prepared.keys()
    assert harness.shard.tables.ongoing.keys() == [NAME]


def test_a_refused_fencing_write_uses_no_epochs() -> None:
    """KAFKA-9666."""
    harness = open_transaction()
    harness.journal.refusal = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    for _ in range(5):
        harness.code(init())
    harness.journal.refusal = None
    assert harness.code(init()) is ErrorCode.CONCURRENT_TRANSACTIONS and harness.producer == (FRESH, 1)


@pytest.mark.parametrize("request_", [end(PRODUCER), end(PRODUCER, False), init(), add(PRODUCER, P1)])
def test_uncommitted_changes_are_discarded_when_leadership_is_lost(request_: Any) -> None:
    harness = open_transaction()
    before = harness.found
    harness.journal.late = True
    responses = harness.submit(request_)
    harness.move()
    assert [type(error) for error in responses] == [NotLeader] and harness.sent == []
    assert harness.found == before
    assert harness.code(end(PRODUCER)) is ErrorCode.NONE


def test_a_retried_init_is_fenced_by_a_new_coordinator() -> None:
    """Match Kafka, which does not store the previous epoch."""
    harness = TransactionHarness()
    harness.execute(init())
    harness.execute(init(PRODUCER))
    harness.move()
    assert harness.code(init(PRODUCER)) is ErrorCode.PRODUCER_FENCED


def test_a_new_leader_completes_prepared_transactions() -> None:
    harness = open_transaction()
    harness.execute(end(PRODUCER))
    lost = harness.sent.pop()
    harness.move()
    assert harness.sent == [lost]
    harness.journal.refusal = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert harness.code(lost.written()) is ErrorCode.NOT_ENOUGH_REPLICAS and harness.state is State.PREPARE_COMMIT
    harness.journal.refusal = None
    assert harness.execute(lost.written()) is None and harness.state is State.COMPLETE_COMMIT
    harness.move()
    assert harness.sent == [lost] and harness.state is State.COMPLETE_COMMIT


def test_a_new_leader_completes_a_prepared_abort_without_partitions() -> None:
    harness = TransactionHarness()
    harness.put(
        state=State.PREPARE_ABORT, started_ms=1, updated_ms=1
    )  # an abort without partitions, as Kafka writes it
    [markers] = harness.sent
    assert markers.partitions == () and harness.runtime.next_timer() is not None
    harness.write_markers()
    assert harness.state is State.COMPLETE_ABORT

"""Transactional batches at the leader: verification with the coordinator, the effect of markers, and what readers see."""

import asyncio

import pytest
from leader_stage import ID, PRODUCER, Stage, batch, fetched

from headrace.base.errors import ErrorCode
from headrace.records.batch import iterate_batches
from headrace.records.compression import Codec
from headrace.server.authority import DenyAll
from headrace.server.frames import CloseConnection

NONE = ErrorCode.NONE


@pytest.fixture
def make_stage():
    made = []

    def make(**options):
        made.append(Stage(**options))
        return made[-1]

    yield make
    for stage in made:
        stage.close()


@pytest.fixture
def stage(make_stage):
    return make_stage()


def pause(stage):
    """Make the coordinator wait until the returned gate is opened."""
    stage.coordinator.gate = stage.loop.create_future()
    return stage.coordinator.gate


def begin(stage, sequence=0, epoch=0, version=12, index=0):
    """Send a batch and return its task; the coordinator has been asked to verify it and has not responded."""
    asked = len(stage.coordinator.asked)
    task, held = stage.send(stage.produce_request({index: batch(sequence, epoch)}), version)
    assert held and len(stage.coordinator.asked) == asked + 1
    return task


def finish(stage, gate, task):
    gate.set_result(None)
    (answer,) = stage.run(task).responses[0].partition_responses
    return ErrorCode(answer.error_code), answer.base_offset


@pytest.mark.parametrize("version", [3, 10, 11, 12, 13])
def test_the_first_batch_asks_the_coordinator_and_the_rest_do_not(make_stage, version):
    stage = make_stage()
    assert stage.produce(0, version=version) == (NONE, 0)
    assert stage.coordinator.asked == [(ID, PRODUCER, 0, stage.names, version >= 12)]
    answer, held = stage.send(stage.produce_request({0: batch(1)}, version=version), version)
    assert not held and answer.responses[0].partition_responses[0].base_offset == 1  # without verifying again
    assert len(stage.coordinator.asked) == 1


@pytest.mark.parametrize("commit", [True, False])
def test_readers_of_committed_records_see_a_transaction_when_it_has_ended(stage, commit):
    assert stage.produce(0, epoch=5, count=3) == (NONE, 0)
    assert stage.produce(3, epoch=5) == (NONE, 3)
    assert (stage.stable(), stage.log().log_end) == (0, 4)
    seen = stage.fetch(0)
    assert (seen.records, seen.last_stable_offset, seen.high_watermark, seen.aborted_transactions) == (b"", 0, 4, [])
    assert len(stage.fetch(0, committed=False).records)
    waiting, _ = stage.send(stage.fetch_request(0, max_wait_ms=600_000), 12)
    stage.run(asyncio.sleep(1))
    assert not waiting.done()
    assert stage.mark(6, commit=commit) == {(PRODUCER, "t", 0): NONE}
    seen = fetched(stage.run(asyncio.wait_for(waiting, 1)))  # woken by the marker
    assert [header.is_control for _, header in iterate_batches(seen.records)] == [False, False, True]
    assert (seen.last_stable_offset, stage.stable()) == (5, 5)
    aborted = [(one.producer_id, one.first_offset) for one in seen.aborted_transactions]
    assert aborted == ([] if commit else [(PRODUCER, 0)])
    assert stage.produce(4, epoch=5) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)  # the transaction has ended
    assert stage.produce(0, epoch=6) == (NONE, 5)


def test_the_earliest_open_transaction_holds_readers_back(stage):
    assert stage.produce(0, producer_id=1) == (NONE, 0)
    assert stage.produce(0, producer_id=2) == (NONE, 1)
    stage.mark(1, producer_id=2, commit=False)
    assert stage.stable() == 0
    stage.mark(1, producer_id=1, commit=True)
    assert stage.stable() == 4
    aborted = [(one.producer_id, one.first_offset) for one in stage.fetch(0).aborted_transactions]
    assert aborted == [(2, 1)]


@pytest.mark.parametrize(
    "version, code, answered",
    [
        (10, ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_TXN_STATE),
        (10, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE),
        (11, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (12, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (12, ErrorCode.INVALID_TXN_STATE, ErrorCode.INVALID_TXN_STATE),
        (11, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, ErrorCode.INVALID_TXN_STATE),
        (10, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH),
        (12, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
        (12, ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_PRODUCER_ID_MAPPING),
        (10, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS),
        (11, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.NOT_ENOUGH_REPLICAS),
        (12, ErrorCode.CONCURRENT_TRANSACTIONS, ErrorCode.CONCURRENT_TRANSACTIONS),
        (12, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.NOT_ENOUGH_REPLICAS),
        (12, ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_ENOUGH_REPLICAS),
        (10, ErrorCode.NOT_COORDINATOR, ErrorCode.NOT_ENOUGH_REPLICAS),
        (12, ErrorCode.NETWORK_EXCEPTION, ErrorCode.NOT_ENOUGH_REPLICAS),
    ],
)
def test_a_coordinator_that_says_no_is_told_as_the_client_can_read_it(stage, version, code, answered):
    stage.coordinator.code = code
    assert stage.produce(0, version=version) == (answered, -1)
    assert stage.log().log_end == 0
    stage.coordinator.code = NONE
    assert stage.produce(0, version=version) == (NONE, 0)  # the client retries


def test_without_a_coordinator_no_transaction_is_open(make_stage):
    assert make_stage(coordinator=None).produce(0) == (ErrorCode.INVALID_TXN_STATE, -1)


@pytest.mark.parametrize("version, transaction_version", [(11, 0), (12, 2)])
def test_a_marker_that_comes_while_the_coordinator_is_asked_ends_what_was_about_to_begin(
    stage, version, transaction_version
):
    gate = pause(stage)
    task = begin(stage, version=version)
    epoch = 1 if transaction_version else 0
    assert stage.mark(epoch, commit=False, transaction_version=transaction_version) == {(PRODUCER, "t", 0): NONE}
    code, offset = finish(stage, gate, task)
    assert offset == -1
    assert code == (ErrorCode.INVALID_PRODUCER_EPOCH if transaction_version else ErrorCode.INVALID_TXN_STATE)
    assert (stage.log().log_end, stage.stable()) == (1, 1)  # no transaction is left open


def test_the_marker_of_the_last_transaction_does_not_end_the_next(stage):
    """Check version 2: a marker has the epoch of the next transaction, whose first batch may already be waiting."""
    assert stage.produce(0, epoch=0) == (NONE, 0)
    gate = pause(stage)
    task = begin(stage, epoch=1)
    stage.mark(1)
    stage.mark(1)  # resent because the response was lost
    assert finish(stage, gate, task) == (NONE, 3)
    assert stage.stable() == 3


def test_verified_before_and_ended_twice_is_not_verified(stage):
    """Check that a verification of one transaction does not count for the next one with the same epoch."""
    gate = pause(stage)
    late = begin(stage, version=11)
    stage.mark(0, transaction_version=0)
    stage.coordinator.gate = None
    assert stage.produce(0, version=11) == (NONE, 1)
    stage.mark(0, transaction_version=0)
    assert finish(stage, gate, late) == (NONE, 1)  # a duplicate, which gets its original offset
    gate = pause(stage)
    late = begin(stage, sequence=1, version=11)
    stage.mark(0, transaction_version=0)
    stage.coordinator.gate = None
    stage.coordinator.code = ErrorCode.TRANSACTION_ABORTABLE
    other = stage.produce(1, version=11)  # takes out another guard
    assert other == (ErrorCode.TRANSACTION_ABORTABLE, -1)
    stage.coordinator.code = NONE
    assert finish(stage, gate, late) == (ErrorCode.INVALID_TXN_STATE, -1)
    assert stage.stable() == stage.log().log_end == 4


def test_a_batch_of_a_fenced_producer_is_refused_and_logged_with_both_epochs(stage, caplog):
    caplog.set_level("INFO", "headrace.api.data.produce_transactional")
    assert stage.produce(0) == (NONE, 0)
    stage.mark(1)
    assert stage.produce(2) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)
    [line] = caplog.messages
    assert line == (
        f"Fenced a producer of transactional id '{ID}' on t-0: producer {PRODUCER} has epoch 1, this came with epoch 0"
    )


def test_a_repeated_batch_is_answered_with_its_first_offset(stage):
    assert stage.produce(0, count=2) == (NONE, 0)
    assert stage.produce(2) == (NONE, 2)
    assert stage.produce(0, count=2) == (NONE, 0)
    assert stage.produce(2) == (NONE, 2)
    assert stage.produce(9) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert stage.log().log_end == 3
    stage.mark(1)
    assert stage.produce(2) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)


def test_a_batch_does_not_overtake_one_whose_coordinator_was_away(stage):
    stage.coordinator.code = ErrorCode.NOT_COORDINATOR
    assert stage.produce(0, version=11) == (ErrorCode.NOT_ENOUGH_REPLICAS, -1)
    stage.coordinator.code = NONE
    assert stage.produce(1, version=11) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert stage.produce(0, version=11) == (NONE, 0)
    assert stage.produce(1, version=11) == (NONE, 1)


@pytest.mark.parametrize("version, code", [(11, NONE), (12, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)])
def test_under_version_two_an_unknown_producer_begins_at_zero(stage, version, code):
    assert stage.produce(4, version=version)[0] == code


def test_an_older_producer_is_refused_before_anybody_is_asked(stage):
    stage.mark(3)
    assert stage.produce(0, epoch=2) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)
    assert stage.coordinator.asked == []


def test_a_producer_with_an_open_transaction_writes_nothing_else(stage):
    stage.produce(0)
    request = stage.produce_request({0: batch(1, transactional=False)}, transactional_id=None)
    (answer,) = stage.ask(request, 12).responses[0].partition_responses
    assert answer.error_code == ErrorCode.INVALID_TXN_STATE


def test_all_partitions_of_a_request_are_asked_for_at_once(make_stage):
    stage = make_stage(partitions=5)
    stage.produce(0, index=1)
    stage.coordinator.asked.clear()
    stage.coordinator.codes = {stage.names[3]: ErrorCode.TRANSACTION_ABORTABLE}
    request = stage.produce_request({index: batch(1 if index == 1 else 0) for index in range(5)} | {9: batch()})
    answers = stage.ask(request, 12).responses[0].partition_responses
    assert stage.coordinator.asked == [(ID, PRODUCER, 0, [name for name in stage.names if name.partition != 1], True)]
    expected = [NONE, NONE, NONE, ErrorCode.TRANSACTION_ABORTABLE, NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert [answer.error_code for answer in answers] == expected
    assert [answer.base_offset for answer in answers] == [0, 1, 0, -1, 0, -1]
    assert stage.mark(1) == {(PRODUCER, "t", index): NONE for index in range(5)}
    assert [stage.stable(index) for index in range(5)] == [2, 3, 2, 1, 2]


def test_a_request_is_of_one_producer(make_stage):
    stage = make_stage(partitions=3)
    request = stage.produce_request({0: batch(), 1: batch(producer_id=5), 2: batch()})
    answers = stage.ask(request, 12).responses[0].partition_responses
    assert [answer.error_code for answer in answers] == [NONE, ErrorCode.INVALID_PRODUCER_ID_MAPPING, NONE]
    assert stage.coordinator.asked == [(ID, PRODUCER, 0, [stage.names[0], stage.names[2]], True)]


def test_switched_off_older_clients_are_believed(stage):
    stage.verification = False
    assert stage.produce(0, version=11) == (NONE, 0)
    assert stage.coordinator.asked == []
    stage.mark(0, transaction_version=0)
    stage.coordinator.code = ErrorCode.TRANSACTION_ABORTABLE
    assert stage.produce(0, epoch=1, version=12) == (
        ErrorCode.TRANSACTION_ABORTABLE,
        -1,
    )  # from version 12 on, the leader adds the partition


def test_a_batch_that_a_thread_has_to_check_is_verified_after_it(stage):
    options = {"codec": Codec.GZIP, "count": 4000, "size": 40}
    assert stage.produce(0, **options) == (NONE, 0)
    assert stage.produce(4000, **options) == (NONE, 4000)
    assert len(stage.coordinator.asked) == 1
    broken = bytearray(batch(0, 1, **options))
    broken[-1] ^= 1
    (answer,) = stage.ask(stage.produce_request({0: bytes(broken)}), 12).responses[0].partition_responses
    assert answer.error_code == ErrorCode.CORRUPT_MESSAGE
    assert len(stage.coordinator.asked) == 1


def test_a_topic_with_a_codec_of_its_own_keeps_what_makes_a_batch_transactional(make_stage):
    stage = make_stage(compression_type="gzip")
    assert stage.produce(0) == (NONE, 0)
    stage.mark(1)
    headers = [header for _, header in iterate_batches(stage.log().read(0, 10**6).range.read())]
    assert [(one.codec, one.is_transactional, one.is_control) for one in headers] == [
        (Codec.GZIP, True, False),
        (Codec.NONE, True, True),
    ]


def test_another_term_of_leadership_has_to_verify_again(stage):
    gate = pause(stage)
    task = begin(stage)
    partition = stage.partitions.get("t", 0)
    partition.lead(2, 1, (2,))
    partition.lead(1, 2, (1,))
    assert finish(stage, gate, task) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    stage.coordinator.gate = None
    assert stage.produce(0) == (NONE, 0)


def test_a_leader_that_is_gone_when_the_coordinator_answers_appends_nothing(stage):
    gate = pause(stage)
    task = begin(stage)
    stage.partitions.get("t", 0).lead(2, 1, (2,))
    assert finish(stage, gate, task) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    assert stage.log().log_end == 0


def test_replicas_that_are_gone_when_the_coordinator_answers_are_missed(stage):
    gate = pause(stage)
    task = begin(stage)
    stage.partitions.get("t", 0).isr = ()
    assert finish(stage, gate, task) == (ErrorCode.NOT_ENOUGH_REPLICAS, -1)
    assert stage.log().log_end == 0


def test_whoever_goes_away_meanwhile_leaves_nothing_in_the_way(stage):
    gate = pause(stage)
    task = begin(stage)
    task.cancel()
    stage.run(asyncio.wait([task]))
    gate.cancel()
    stage.coordinator.gate = None
    assert stage.log().log_end == 0
    assert stage.produce(0) == (NONE, 0)


def test_what_makes_no_sense_is_refused_before_anybody_is_asked(stage):
    def code(records, transactional_id=ID):
        request = stage.produce_request({0: records}, transactional_id=transactional_id)
        return stage.ask(request, 12).responses[0].partition_responses[0].error_code

    assert code(batch(), None) == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert code(batch(-1, -1, producer_id=-1)) == ErrorCode.INVALID_RECORD
    assert code(batch(0, -1)) == ErrorCode.INVALID_RECORD
    assert code(batch(-1)) == ErrorCode.INVALID_RECORD
    assert stage.coordinator.asked == [] and stage.log().log_end == 0


def test_who_may_not_use_the_transactional_id_may_not_write_to_it(make_stage):
    class Authority(DenyAll):
        def allows(self, context, operation, resource, name, *, quietly=False):
            return name != ID

    assert make_stage(authority=Authority()).produce(0) == (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1)


def test_who_wants_no_answer_hears_of_a_refusal_by_losing_the_connection(stage):
    answer, _ = stage.send(stage.produce_request({0: batch()}, acks=0), 12)
    assert answer is None and stage.log().log_end == 1
    stage.mark(1)
    with pytest.raises(CloseConnection):
        stage.send(stage.produce_request({0: batch()}, acks=0), 12)


@pytest.mark.parametrize("clean", [True, False])
def test_an_open_transaction_is_still_open_after_a_restart(stage, clean):
    stage.produce(0, producer_id=1, count=2)
    stage.produce(0, producer_id=2)
    stage.mark(1, producer_id=1, commit=False)
    stage.produce(0, producer_id=3)
    assert stage.stable() == 2
    stage.restart(clean=clean)
    assert (stage.stable(), stage.log().log_end) == (2, 5)
    stage.coordinator.asked.clear()
    assert stage.produce(1, producer_id=2) == (NONE, 5)
    assert stage.coordinator.asked == []  # the log already has the open transaction
    assert stage.produce(0, producer_id=1) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)
    assert stage.mark(1, producer_id=2, coordinator_epoch=2) == {(2, "t", 0): NONE}
    assert stage.stable() == 4
    stage.mark(1, producer_id=3, commit=False)
    assert stage.stable() == stage.log().log_end == 8
    stage.restart(clean=clean)
    assert stage.stable() == 8
    aborted = [(one.producer_id, one.first_offset) for one in stage.fetch(0).aborted_transactions]
    assert aborted == [(1, 0), (3, 4)]
    assert [(one.producer_id, one.first_offset) for one in stage.fetch(5).aborted_transactions] == [(3, 4)]

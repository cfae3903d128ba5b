"""Transactional batches at the leader: verification with the coordinator, the effect of markers, and what readers see."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.api.leader_harness import ID, PRODUCER, LeaderHarness, batch, fetched
from tests.replication.replication_samples import elect

from headrace.base.errors import ErrorCode
from headrace.records.batch import iterate_batches
from headrace.records.compression import Codec
from headrace.security.resources import Operation, Resource
from headrace.server.authority import DenyAll
from headrace.server.context import RequestContext
from headrace.server.frames import CloseConnection

NONE = ErrorCode.NONE


@pytest.fixture
def make_harness() -> Iterator[Callable[..., Any]]:
    made: list[LeaderHarness] = []

    def make(**options: Any) -> LeaderHarness:
        made.append(LeaderHarness(**options))
        return made[-1]

    yield make
    for harness in made:
        harness.close()


@pytest.fixture
def harness(make_harness: Callable[..., Any]) -> LeaderHarness:
    return make_harness()


def pause_verification(harness: LeaderHarness) -> asyncio.Future[Any]:
    """Make the coordinator wait until the returned gate is opened."""
    harness.coordinator.gate = harness.loop.create_future()
    return harness.coordinator.gate


def begin_produce(
    harness: LeaderHarness, sequence: int = 0, epoch: int = 0, version: int = 12, index: int = 0
) -> asyncio.Task[Any]:
    """Send a batch and return its task; the coordinator has been asked to verify it and has not responded."""
    requested = len(harness.coordinator.requested)
    task, held = harness.send(harness.produce_request({index: batch(sequence, epoch)}), version)
    assert held and len(harness.coordinator.requested) == requested + 1
    return task


def finish_produce(harness: LeaderHarness, gate: asyncio.Future[Any], task: asyncio.Task[Any]) -> tuple[ErrorCode, int]:
    gate.set_result(None)
    (answer,) = harness.run(task).responses[0].partition_responses
    return ErrorCode(answer.error_code), answer.base_offset


@pytest.mark.parametrize("version", [3, 10, 11, 12, 13])
def test_only_the_first_batch_of_a_transaction_is_verified(make_harness: Callable[..., Any], version: int) -> None:
    harness = make_harness()
    assert harness.produce(0, version=version) == (NONE, 0)
    assert harness.coordinator.requested == [(ID, PRODUCER, 0, harness.names, version >= 12)]
    answer, held = harness.send(harness.produce_request({0: batch(1)}, version=version), version)
    assert not held and answer.responses[0].partition_responses[0].base_offset == 1  # without verifying again
    assert len(harness.coordinator.requested) == 1


@pytest.mark.parametrize("commit", [True, False])
def test_read_committed_readers_see_a_transaction_only_after_it_ends(harness: LeaderHarness, commit: bool) -> None:
    assert harness.produce(0, epoch=5, count=3) == (NONE, 0)
    assert harness.produce(3, epoch=5) == (NONE, 3)
    assert (harness.stable(), harness.log().log_end) == (0, 4)
    seen = harness.fetch(0)
    assert (seen.records, seen.last_stable_offset, seen.high_watermark, seen.aborted_transactions) == (b"", 0, 4, [])
    assert len(harness.fetch(0, committed=False).records)
    waiting, _ = harness.send(harness.fetch_request(0, max_wait_ms=600_000), 12)
    harness.run(asyncio.sleep(1))
    assert not waiting.done()
    assert harness.mark(6, commit=commit) == {(PRODUCER, "t", 0): NONE}
    seen = fetched(harness.run(asyncio.wait_for(waiting, 1)))  # woken by the marker
    assert [header.is_control for _, header in iterate_batches(seen.records)] == [False, False, True]  # type: ignore[arg-type]
    assert (seen.last_stable_offset, harness.stable()) == (5, 5)
    aborted = [(one.producer_id, one.first_offset) for one in seen.aborted_transactions]
    assert aborted == ([] if commit else [(PRODUCER, 0)])
    assert harness.produce(4, epoch=5) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)  # the transaction has ended
    assert harness.produce(0, epoch=6) == (NONE, 5)


def test_the_earliest_open_transaction_bounds_the_last_stable_offset(harness: LeaderHarness) -> None:
    assert harness.produce(0, producer_id=1) == (NONE, 0)
    assert harness.produce(0, producer_id=2) == (NONE, 1)
    harness.mark(1, producer_id=2, commit=False)
    assert harness.stable() == 0
    harness.mark(1, producer_id=1, commit=True)
    assert harness.stable() == 4
    aborted = [(one.producer_id, one.first_offset) for one in harness.fetch(0).aborted_transactions]
    assert aborted == [(2, 1)]


@pytest.mark.parametrize(
    "version, code, client_error",
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
def test_coordinator_errors_are_mapped_to_errors_of_the_produce_version(
    harness: LeaderHarness, version: int, code: ErrorCode, client_error: ErrorCode
) -> None:
    harness.coordinator.code = code
    assert harness.produce(0, version=version) == (client_error, -1)
    assert harness.log().log_end == 0
    harness.coordinator.code = NONE
    assert harness.produce(0, version=version) == (NONE, 0)  # the client retries


def test_transactional_batches_are_refused_without_a_coordinator(make_harness: Callable[..., Any]) -> None:
    assert make_harness(coordinator=None).produce(0) == (ErrorCode.INVALID_TXN_STATE, -1)


@pytest.mark.parametrize("version, transaction_version", [(11, 0), (12, 2)])
def test_a_marker_during_verification_fails_the_batch(
    harness: LeaderHarness, version: int, transaction_version: int
) -> None:
    gate = pause_verification(harness)
    task = begin_produce(harness, version=version)
    epoch = 1 if transaction_version else 0
    assert harness.mark(epoch, commit=False, transaction_version=transaction_version) == {(PRODUCER, "t", 0): NONE}
    code, offset = finish_produce(harness, gate, task)
    assert offset == -1
    assert code == (ErrorCode.INVALID_PRODUCER_EPOCH if transaction_version else ErrorCode.INVALID_TXN_STATE)
    assert (harness.log().log_end, harness.stable()) == (1, 1)  # no transaction is left open


def test_a_marker_of_the_previous_transaction_does_not_end_the_next(harness: LeaderHarness) -> None:
    """Check version 2: a marker has the epoch of the next transaction, whose first batch may already be waiting."""
    assert harness.produce(0, epoch=0) == (NONE, 0)
    gate = pause_verification(harness)
    task = begin_produce(harness, epoch=1)
    harness.mark(1)
    harness.mark(1)  # resent because the response was lost
    assert finish_produce(harness, gate, task) == (NONE, 3)
    assert harness.stable() == 3


def test_a_verification_does_not_carry_over_to_the_next_transaction(harness: LeaderHarness) -> None:
    """Check that a verification of one transaction does not count for the next one with the same epoch."""
    gate = pause_verification(harness)
    late = begin_produce(harness, version=11)
    harness.mark(0, transaction_version=0)
    harness.coordinator.gate = None
    assert harness.produce(0, version=11) == (NONE, 1)
    harness.mark(0, transaction_version=0)
    assert finish_produce(harness, gate, late) == (NONE, 1)  # a duplicate, which gets its original offset
    gate = pause_verification(harness)
    late = begin_produce(harness, sequence=1, version=11)
    harness.mark(0, transaction_version=0)
    harness.coordinator.gate = None
    harness.coordinator.code = ErrorCode.TRANSACTION_ABORTABLE
    other = harness.produce(1, version=11)  # takes out another guard
    assert other == (ErrorCode.TRANSACTION_ABORTABLE, -1)
    harness.coordinator.code = NONE
    assert finish_produce(harness, gate, late) == (ErrorCode.INVALID_TXN_STATE, -1)
    assert harness.stable() == harness.log().log_end == 4


def test_a_batch_of_a_fenced_producer_is_refused_and_logged_with_both_epochs(
    harness: LeaderHarness, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "headrace.api.data.produce_transactional")
    assert harness.produce(0) == (NONE, 0)
    harness.mark(1)
    assert harness.produce(2) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)
    [line] = caplog.messages
    assert line == (
        f"Fenced a producer of transactional id '{ID}' on t-0: producer {PRODUCER} has epoch 1, this request has epoch 0"
    )


def test_a_duplicate_batch_gets_its_original_offset(harness: LeaderHarness) -> None:
    assert harness.produce(0, count=2) == (NONE, 0)
    assert harness.produce(2) == (NONE, 2)
    assert harness.produce(0, count=2) == (NONE, 0)
    assert harness.produce(2) == (NONE, 2)
    assert harness.produce(9) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert harness.log().log_end == 3
    harness.mark(1)
    assert harness.produce(2) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)


def test_a_batch_cannot_overtake_one_that_failed_verification(harness: LeaderHarness) -> None:
    harness.coordinator.code = ErrorCode.NOT_COORDINATOR
    assert harness.produce(0, version=11) == (ErrorCode.NOT_ENOUGH_REPLICAS, -1)
    harness.coordinator.code = NONE
    assert harness.produce(1, version=11) == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert harness.produce(0, version=11) == (NONE, 0)
    assert harness.produce(1, version=11) == (NONE, 1)


@pytest.mark.parametrize("version, code", [(11, NONE), (12, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)])
def test_transaction_version_2_requires_an_unknown_producer_to_start_at_sequence_0(
    harness: LeaderHarness, version: int, code: ErrorCode
) -> None:
    assert harness.produce(4, version=version)[0] == code


def test_a_stale_producer_epoch_is_refused_before_verification(harness: LeaderHarness) -> None:
    harness.mark(3)
    assert harness.produce(0, epoch=2) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)
    assert harness.coordinator.requested == []


def test_a_non_transactional_batch_is_refused_while_a_transaction_is_open(harness: LeaderHarness) -> None:
    harness.produce(0)
    request = harness.produce_request({0: batch(1, transactional=False)}, transactional_id=None)
    (answer,) = harness.send_and_wait(request, 12).responses[0].partition_responses
    assert answer.error_code == ErrorCode.INVALID_TXN_STATE


def test_all_unverified_partitions_of_a_request_are_verified_together(make_harness: Callable[..., Any]) -> None:
    harness = make_harness(partitions=5)
    harness.produce(0, index=1)
    harness.coordinator.requested.clear()
    harness.coordinator.codes = {harness.names[3]: ErrorCode.TRANSACTION_ABORTABLE}
    request = harness.produce_request({index: batch(1 if index == 1 else 0) for index in range(5)} | {9: batch()})
    answers = harness.send_and_wait(request, 12).responses[0].partition_responses
    assert harness.coordinator.requested == [
        (ID, PRODUCER, 0, [name for name in harness.names if name.partition != 1], True)
    ]
    expected = [NONE, NONE, NONE, ErrorCode.TRANSACTION_ABORTABLE, NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert [answer.error_code for answer in answers] == expected
    assert [answer.base_offset for answer in answers] == [0, 1, 0, -1, 0, -1]
    assert harness.mark(1) == {(PRODUCER, "t", index): NONE for index in range(5)}
    assert [harness.stable(index) for index in range(5)] == [2, 3, 2, 1, 2]


def test_batches_of_a_second_producer_in_a_request_are_refused(make_harness: Callable[..., Any]) -> None:
    harness = make_harness(partitions=3)
    request = harness.produce_request({0: batch(), 1: batch(producer_id=5), 2: batch()})
    answers = harness.send_and_wait(request, 12).responses[0].partition_responses
    assert [answer.error_code for answer in answers] == [NONE, ErrorCode.INVALID_PRODUCER_ID_MAPPING, NONE]
    assert harness.coordinator.requested == [(ID, PRODUCER, 0, [harness.names[0], harness.names[2]], True)]


def test_with_verification_disabled_older_produce_versions_are_not_verified(harness: LeaderHarness) -> None:
    harness.verification = False
    assert harness.produce(0, version=11) == (NONE, 0)
    assert harness.coordinator.requested == []
    harness.mark(0, transaction_version=0)
    harness.coordinator.code = ErrorCode.TRANSACTION_ABORTABLE
    assert harness.produce(0, epoch=1, version=12) == (
        ErrorCode.TRANSACTION_ABORTABLE,
        -1,
    )  # from version 12 on, the leader adds the partition


def test_large_compressed_batches_are_verified_after_their_validation(harness: LeaderHarness) -> None:
    options: dict[str, Any] = {"codec": Codec.GZIP, "count": 4000, "size": 40}
    assert harness.produce(0, **options) == (NONE, 0)
    assert harness.produce(4000, **options) == (NONE, 4000)
    assert len(harness.coordinator.requested) == 1
    broken = bytearray(batch(0, 1, **options))
    broken[-1] ^= 1
    (answer,) = harness.send_and_wait(harness.produce_request({0: bytes(broken)}), 12).responses[0].partition_responses
    assert answer.error_code == ErrorCode.CORRUPT_MESSAGE
    assert len(harness.coordinator.requested) == 1


def test_recompressed_batches_stay_transactional(make_harness: Callable[..., Any]) -> None:
    harness = make_harness(compression_type="gzip")
    assert harness.produce(0) == (NONE, 0)
    harness.mark(1)
    headers = [header for _, header in iterate_batches(harness.log().read(0, 10**6).range.read())]
    assert [(one.codec, one.is_transactional, one.is_control) for one in headers] == [
        (Codec.GZIP, True, False),
        (Codec.NONE, True, True),
    ]


def test_a_new_leader_epoch_discards_pending_verifications(harness: LeaderHarness) -> None:
    gate = pause_verification(harness)
    task = begin_produce(harness)
    partition = harness.partitions.get("t", 0)
    elect(partition, 2, 1, (2,))
    elect(partition, 1, 2, (1,))
    assert finish_produce(harness, gate, task) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    harness.coordinator.gate = None
    assert harness.produce(0) == (NONE, 0)


def test_losing_leadership_during_verification_appends_nothing(harness: LeaderHarness) -> None:
    gate = pause_verification(harness)
    task = begin_produce(harness)
    elect(harness.partitions.get("t", 0), 2, 1, (2,))
    assert finish_produce(harness, gate, task) == (ErrorCode.NOT_LEADER_OR_FOLLOWER, -1)
    assert harness.log().log_end == 0


def test_losing_in_sync_replicas_during_verification_returns_not_enough_replicas(harness: LeaderHarness) -> None:
    gate = pause_verification(harness)
    task = begin_produce(harness)
    harness.partitions.get("t", 0).isr = ()
    assert finish_produce(harness, gate, task) == (ErrorCode.NOT_ENOUGH_REPLICAS, -1)
    assert harness.log().log_end == 0


def test_a_request_cancelled_during_verification_does_not_block_later_batches(harness: LeaderHarness) -> None:
    gate = pause_verification(harness)
    task = begin_produce(harness)
    task.cancel()
    harness.run(asyncio.wait([task]))
    gate.cancel()
    harness.coordinator.gate = None
    assert harness.log().log_end == 0
    assert harness.produce(0) == (NONE, 0)


def test_invalid_transactional_batches_are_refused_before_verification(harness: LeaderHarness) -> None:
    def code(records: bytes, transactional_id: str | None = ID) -> int:
        request = harness.produce_request({0: records}, transactional_id=transactional_id)
        return harness.send_and_wait(request, 12).responses[0].partition_responses[0].error_code

    assert code(batch(), None) == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    assert code(batch(-1, -1, producer_id=-1)) == ErrorCode.INVALID_RECORD
    assert code(batch(0, -1)) == ErrorCode.INVALID_RECORD
    assert code(batch(-1)) == ErrorCode.INVALID_RECORD
    assert harness.coordinator.requested == [] and harness.log().log_end == 0


def test_producing_without_permission_for_the_transactional_id_is_refused(make_harness: Callable[..., Any]) -> None:
    class Authority(DenyAll):
        def allows(
            self, context: RequestContext, operation: Operation, resource: Resource, name: str, *, quietly: bool = False
        ) -> bool:
            return name != ID

    assert make_harness(authority=Authority()).produce(0) == (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, -1)


def test_a_refused_batch_with_acks_0_closes_the_connection(harness: LeaderHarness) -> None:
    answer, _ = harness.send(harness.produce_request({0: batch()}, acks=0), 12)
    assert answer is None and harness.log().log_end == 1
    harness.mark(1)
    with pytest.raises(CloseConnection):
        harness.send(harness.produce_request({0: batch()}, acks=0), 12)


@pytest.mark.parametrize("clean", [True, False])
def test_an_open_transaction_is_still_open_after_a_restart(harness: LeaderHarness, clean: bool) -> None:
    harness.produce(0, producer_id=1, count=2)
    harness.produce(0, producer_id=2)
    harness.mark(1, producer_id=1, commit=False)
    harness.produce(0, producer_id=3)
    assert harness.stable() == 2
    harness.restart(clean=clean)
    assert (harness.stable(), harness.log().log_end) == (2, 5)
    harness.coordinator.requested.clear()
    assert harness.produce(1, producer_id=2) == (NONE, 5)
    assert harness.coordinator.requested == []  # the log already has the open transaction
    assert harness.produce(0, producer_id=1) == (ErrorCode.INVALID_PRODUCER_EPOCH, -1)
    assert harness.mark(1, producer_id=2, coordinator_epoch=2) == {(2, "t", 0): NONE}
    assert harness.stable() == 4
    harness.mark(1, producer_id=3, commit=False)
    assert harness.stable() == harness.log().log_end == 8
    harness.restart(clean=clean)
    assert harness.stable() == 8
    aborted = [(one.producer_id, one.first_offset) for one in harness.fetch(0).aborted_transactions]
    assert aborted == [(1, 0), (3, 4)]
    assert [(one.producer_id, one.first_offset) for one in harness.fetch(5).aborted_transactions] == [(3, 4)]

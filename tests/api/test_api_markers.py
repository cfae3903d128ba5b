"""WriteTxnMarkers: what each partition responds and when, and which callers are permitted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.api.leader_harness import NOW_MS, PRODUCER, LeaderHarness, batch, marker_codes
from tests.replication.replication_samples import elect

from headrace.api.transactions.write_txn_markers import MARKERS_AT_ONCE
from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.protocol.messages.write_txn_markers import WriteTxnMarkersRequest
from headrace.records.control import TransactionMarker
from headrace.security.resources import Operation, Resource
from headrace.server.authority import DenyAll
from headrace.server.context import RequestContext

NONE = ErrorCode.NONE
OFFSETS = "__consumer_offsets"


@pytest.fixture
def make_harness() -> Iterator[Callable[..., Any]]:
    made: list[LeaderHarness] = []

    def make(**options: Any) -> LeaderHarness:
        made.append(LeaderHarness(**options))
        return made[-1]

    yield make
    for harness in made:
        harness.close()


def test_each_partition_gets_its_own_error_code(make_harness: Callable[..., Any]) -> None:
    harness = make_harness(partitions=4)
    elect(harness.partitions.get("t", 1), 2, 1, (2,))
    harness.partitions.get("t", 2).isr = ()
    harness.files.fault = lambda operation, path: (
        OSError(28, "full", path) if operation == "append" and "t-3/" in path else None
    )
    names = [*harness.names, TopicPartition("t", 8), TopicPartition("nowhere", 0)]
    codes = harness.mark(0, partitions=names)
    assert {key[1:]: code for key, code in codes.items()} == {
        ("t", 0): NONE,
        ("t", 1): ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ("t", 2): ErrorCode.NOT_ENOUGH_REPLICAS,
        ("t", 3): ErrorCode.KAFKA_STORAGE_ERROR,
        ("t", 8): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("nowhere", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert [harness.log(index).log_end for index in range(4)] == [1, 0, 0, 0]


def test_markers_with_a_stale_producer_or_coordinator_epoch_are_refused(make_harness: Callable[..., Any]) -> None:
    harness = make_harness()
    key = (PRODUCER, "t", 0)
    harness.produce(0, epoch=4)
    assert harness.mark(3) == {key: ErrorCode.INVALID_PRODUCER_EPOCH}
    assert harness.mark(4) == {key: ErrorCode.INVALID_PRODUCER_EPOCH}  # version 2 requires a higher epoch
    assert harness.mark(5, coordinator_epoch=9) == {key: NONE}
    assert harness.mark(6, coordinator_epoch=8) == {key: ErrorCode.TRANSACTION_COORDINATOR_FENCED}
    assert harness.mark(5, coordinator_epoch=9) == {key: NONE}  # a duplicate
    assert harness.mark(-1) == {key: ErrorCode.INVALID_REQUEST}
    assert harness.mark(1, producer_id=-1) == {(-1, "t", 0): ErrorCode.INVALID_REQUEST}
    assert harness.log().log_end == 3


def test_markers_before_transaction_version_2_keep_the_producer_epoch(make_harness: Callable[..., Any]) -> None:
    harness = make_harness()
    harness.produce(0, epoch=4, version=11)
    assert harness.mark(4, version=1) == {(PRODUCER, "t", 0): NONE}
    assert harness.stable() == 2
    harness.produce(1, epoch=4, version=11)
    assert harness.mark(4, version=2, transaction_version=1) == {(PRODUCER, "t", 0): NONE}
    assert harness.stable() == 4


def test_a_request_may_carry_more_markers_than_are_written_at_once(make_harness: Callable[..., Any]) -> None:
    harness = make_harness(partitions=3)
    count = 2 * MARKERS_AT_ONCE // 3
    topics = [WriteTxnMarkersRequest.WritableTxnMarkerTopic(name="t", partition_indexes=[0, 1, 2])]
    marker = WriteTxnMarkersRequest.WritableTxnMarker
    markers = [marker(producer_id=number, transaction_result=True, topics=topics) for number in range(count)]
    codes = marker_codes(harness.send_and_wait(WriteTxnMarkersRequest(markers=markers), 2))
    assert codes == {(number, "t", index): NONE for number in range(count) for index in range(3)}
    assert harness.log(2).log_end == count
    answer = harness.send_and_wait(WriteTxnMarkersRequest(markers=[markers[0], markers[1], markers[0]]), 2)
    assert [result.producer_id for result in answer.markers] == [0, 1]  # one result per producer
    assert harness.send_and_wait(WriteTxnMarkersRequest(), 2).markers == []


def test_markers_are_acknowledged_after_the_flush_when_flush_messages_is_1(make_harness: Callable[..., Any]) -> None:
    harness = make_harness(flush_messages=1)
    harness.produce(0)
    request = WriteTxnMarkersRequest(
        markers=[
            WriteTxnMarkersRequest.WritableTxnMarker(
                producer_id=PRODUCER,
                producer_epoch=1,
                transaction_result=True,
                topics=[WriteTxnMarkersRequest.WritableTxnMarkerTopic(name="t", partition_indexes=[0])],
            )
        ]
    )
    task, _ = harness.send(request, 2)
    while harness.log().log_end == 1:
        harness.run(asyncio.sleep(0))
    assert not task.done() and harness.stable() == 0  # the marker does not count before it is on disk
    assert marker_codes(harness.run(task)) == {(PRODUCER, "t", 0): NONE}
    assert harness.stable() == harness.log().recovery_point == 2
    harness.files.fault = lambda operation, path: OSError(5, "broken", path) if operation == "sync" else None
    assert harness.mark(2) == {(PRODUCER, "t", 0): ErrorCode.KAFKA_STORAGE_ERROR}


def test_markers_for_consumer_offsets_go_through_the_group_coordinator(make_harness: Callable[..., Any]) -> None:
    harness = make_harness(partitions=2, topic=OFFSETS)
    assert harness.mark(6, partitions=harness.names[1:], commit=False) == {(PRODUCER, OFFSETS, 1): NONE}
    assert harness.ended_offsets == [(1, PRODUCER, 6, TransactionMarker(False, 3), 2)]
    assert harness.log(1).log_end == 0  # the coordinator writes the marker
    for raised, answered in [
        (KafkaError(ErrorCode.NOT_COORDINATOR), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH), ErrorCode.INVALID_PRODUCER_EPOCH),
        (RuntimeError("a defect"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ]:
        harness.offsets_error = raised
        assert harness.mark(6, partitions=harness.names[:1]) == {(PRODUCER, OFFSETS, 0): answered}
    absent = [TopicPartition(OFFSETS, 7)]
    assert harness.mark(6, partitions=absent) == {(PRODUCER, OFFSETS, 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert len(harness.ended_offsets) == 6


@pytest.mark.parametrize("granted", [None, Operation.ALTER, Operation.CLUSTER_ACTION])
def test_write_txn_markers_requires_alter_or_cluster_action(
    make_harness: Callable[..., Any], granted: Operation | None
) -> None:
    class Authority(DenyAll):
        def allows(
            self, context: RequestContext, operation: Operation, resource: Resource, name: str, *, quietly: bool = False
        ) -> bool:
            return resource is Resource.CLUSTER and operation is granted

    harness = make_harness(authority=Authority())
    code = NONE if granted else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert harness.mark(0) == {(PRODUCER, "t", 0): code}
    assert harness.log().log_end == (1 if granted else 0)


def test_a_marker_has_the_brokers_timestamp(make_harness: Callable[..., Any]) -> None:
    harness = make_harness(message_timestamp_type="LogAppendTime")
    harness.send_and_wait(harness.produce_request({0: batch()}), 12)
    harness.mark(1)
    entry = harness.log().producers.entry(PRODUCER)
    assert (entry.last_timestamp, entry.coordinator_epoch, entry.transaction_first_offset) == (NOW_MS, 3, -1)

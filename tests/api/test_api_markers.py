"""WriteTxnMarkers: what each partition responds and when, and which callers are permitted."""

import asyncio

import pytest
from leader_stage import NOW_MS, PRODUCER, Stage, batch, marker_codes

from headrace.api.transactions.write_txn_markers import MARKERS_AT_ONCE
from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.protocol.messages.write_txn_markers import WriteTxnMarkersRequest
from headrace.records.control import TransactionMarker
from headrace.security.resources import Operation, Resource
from headrace.server.authority import DenyAll

NONE = ErrorCode.NONE
OFFSETS = "__consumer_offsets"


@pytest.fixture
def make_stage():
    made = []

    def make(**options):
        made.append(Stage(**options))
        return made[-1]

    yield make
    for stage in made:
        stage.close()


def test_each_partition_has_an_answer_of_its_own(make_stage):
    stage = make_stage(partitions=4)
    stage.partitions.get("t", 1).lead(2, 1, (2,))
    stage.partitions.get("t", 2).isr = ()
    stage.files.fault = lambda operation, path: (
        OSError(28, "full", path) if operation == "append" and "t-3/" in path else None
    )
    names = [*stage.names, TopicPartition("t", 8), TopicPartition("nowhere", 0)]
    codes = stage.mark(0, partitions=names)
    assert {key[1:]: code for key, code in codes.items()} == {
        ("t", 0): NONE,
        ("t", 1): ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ("t", 2): ErrorCode.NOT_ENOUGH_REPLICAS,
        ("t", 3): ErrorCode.KAFKA_STORAGE_ERROR,
        ("t", 8): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ("nowhere", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    }
    assert [stage.log(index).log_end for index in range(4)] == [1, 0, 0, 0]


def test_late_markers_are_refused(make_stage):
    stage = make_stage()
    key = (PRODUCER, "t", 0)
    stage.produce(0, epoch=4)
    assert stage.mark(3) == {key: ErrorCode.INVALID_PRODUCER_EPOCH}
    assert stage.mark(4) == {key: ErrorCode.INVALID_PRODUCER_EPOCH}  # version 2 requires a higher epoch
    assert stage.mark(5, coordinator_epoch=9) == {key: NONE}
    assert stage.mark(6, coordinator_epoch=8) == {key: ErrorCode.TRANSACTION_COORDINATOR_FENCED}
    assert stage.mark(5, coordinator_epoch=9) == {key: NONE}  # a duplicate
    assert stage.mark(-1) == {key: ErrorCode.INVALID_REQUEST}
    assert stage.mark(1, producer_id=-1) == {(-1, "t", 0): ErrorCode.INVALID_REQUEST}
    assert stage.log().log_end == 3


def test_version_one_knows_only_the_old_rule(make_stage):
    stage = make_stage()
    stage.produce(0, epoch=4, version=11)
    assert stage.mark(4, version=1) == {(PRODUCER, "t", 0): NONE}
    assert stage.stable() == 2
    stage.produce(1, epoch=4, version=11)
    assert stage.mark(4, version=2, transaction_version=1) == {(PRODUCER, "t", 0): NONE}
    assert stage.stable() == 4


def test_many_markers_in_one_request(make_stage):
    stage = make_stage(partitions=3)
    count = 2 * MARKERS_AT_ONCE // 3
    topics = [WriteTxnMarkersRequest.WritableTxnMarkerTopic(name="t", partition_indexes=[0, 1, 2])]
    marker = WriteTxnMarkersRequest.WritableTxnMarker
    markers = [marker(producer_id=number, transaction_result=True, topics=topics) for number in range(count)]
    codes = marker_codes(stage.ask(WriteTxnMarkersRequest(markers=markers), 2))
    assert codes == {(number, "t", index): NONE for number in range(count) for index in range(3)}
    assert stage.log(2).log_end == count
    answer = stage.ask(WriteTxnMarkersRequest(markers=[markers[0], markers[1], markers[0]]), 2)
    assert [result.producer_id for result in answer.markers] == [0, 1]  # one result per producer
    assert stage.ask(WriteTxnMarkersRequest(), 2).markers == []


def test_what_is_answered_is_on_disk_where_that_is_wanted(make_stage):
    stage = make_stage(flush_messages=1)
    stage.produce(0)
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
    task, _ = stage.send(request, 2)
    while stage.log().log_end == 1:
        stage.run(asyncio.sleep(0))
    assert not task.done() and stage.stable() == 0  # the marker does not count before it is on disk
    assert marker_codes(stage.run(task)) == {(PRODUCER, "t", 0): NONE}
    assert stage.stable() == stage.log().recovery_point == 2
    stage.files.fault = lambda operation, path: OSError(5, "broken", path) if operation == "sync" else None
    assert stage.mark(2) == {(PRODUCER, "t", 0): ErrorCode.KAFKA_STORAGE_ERROR}


def test_offsets_of_groups_go_through_their_coordinator(make_stage):
    stage = make_stage(partitions=2, topic=OFFSETS)
    assert stage.mark(6, partitions=stage.names[1:], commit=False) == {(PRODUCER, OFFSETS, 1): NONE}
    assert stage.ended_offsets == [(1, PRODUCER, 6, TransactionMarker(False, 3), 2)]
    assert stage.log(1).log_end == 0  # the coordinator writes the marker
    for raised, answered in [
        (KafkaError(ErrorCode.NOT_COORDINATOR), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE), ErrorCode.NOT_LEADER_OR_FOLLOWER),
        (KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH), ErrorCode.INVALID_PRODUCER_EPOCH),
        (RuntimeError("a defect"), ErrorCode.UNKNOWN_SERVER_ERROR),
    ]:
        stage.offsets_error = raised
        assert stage.mark(6, partitions=stage.names[:1]) == {(PRODUCER, OFFSETS, 0): answered}
    absent = [TopicPartition(OFFSETS, 7)]
    assert stage.mark(6, partitions=absent) == {(PRODUCER, OFFSETS, 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert len(stage.ended_offsets) == 6


@pytest.mark.parametrize("may", [None, Operation.ALTER, Operation.CLUSTER_ACTION])
def test_brokers_may_ask_and_administrators(make_stage, may):
    class Authority(DenyAll):
        def allows(self, context, operation, resource, name, *, quietly=False):
            return resource is Resource.CLUSTER and operation is may

    stage = make_stage(authority=Authority())
    code = NONE if may else ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert stage.mark(0) == {(PRODUCER, "t", 0): code}
    assert stage.log().log_end == (1 if may else 0)


def test_the_time_of_a_marker_is_the_brokers(make_stage):
    stage = make_stage(message_timestamp_type="LogAppendTime")
    stage.ask(stage.produce_request({0: batch()}), 12)
    stage.mark(1)
    entry = stage.log().producers.entry(PRODUCER)
    assert (entry.last_timestamp, entry.coordinator_epoch, entry.transaction_first_offset) == (NOW_MS, 3, -1)

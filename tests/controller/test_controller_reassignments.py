"""Reassignments: new replicas are added, get in sync, and then take the place of the old ones."""

from __future__ import annotations

import pytest
from tests.controller.controller_harness import ControllerHarness

from headrace.base.errors import ErrorCode
from headrace.base.ids import Uuid
from headrace.metadata.image import Partition
from headrace.protocol.messages.alter_partition_reassignments import AlterPartitionReassignmentsRequest
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsRequest


def directory(broker: int) -> Uuid:
    return Uuid(bytes([broker]) * 16)


def make_harness(replicas: tuple[int, ...] = (1, 2)) -> ControllerHarness:
    """Return a harness with four brokers, each with a directory of its own, and the topic `t` with these replicas."""
    harness = ControllerHarness(())
    for broker in (1, 2, 3, 4):
        harness.register(broker, log_dirs=[directory(broker)])
    assignment = CreateTopicsRequest.CreatableReplicaAssignment(partition_index=0, broker_ids=list(replicas))
    harness.create(
        CreateTopicsRequest.CreatableTopic(name="t", num_partitions=-1, replication_factor=-1, assignments=[assignment])
    )
    return harness


def reassign(
    harness: ControllerHarness, replicas: list[int] | None, *, index: int = 0, factor_may_change: bool = True
) -> ErrorCode:
    partition = AlterPartitionReassignmentsRequest.ReassignablePartition(partition_index=index, replicas=replicas)
    response = harness.send_request(
        AlterPartitionReassignmentsRequest(
            allow_replication_factor_change=factor_may_change,
            topics=[AlterPartitionReassignmentsRequest.ReassignableTopic(name="t", partitions=[partition])],
        )
    )
    return ErrorCode(response.responses[0].partitions[0].error_code)


def moves(partition: Partition) -> tuple[tuple[int, ...], ...]:
    return partition.replicas, partition.adding_replicas, partition.removing_replicas


def test_a_partition_moves_when_its_new_replicas_are_in_sync() -> None:
    harness = make_harness()
    assert reassign(harness, [3, 4]) is ErrorCode.NONE
    partition = harness.partition("t")
    assert moves(partition) == ((3, 4, 1, 2), (3, 4), (1, 2)) and (partition.leader, partition.isr) == (1, (1, 2))
    assert partition.directories == tuple(directory(broker) for broker in (3, 4, 1, 2))
    [ongoing] = harness.send_request(ListPartitionReassignmentsRequest()).topics
    assert ongoing.partitions[0].adding_replicas == [3, 4]
    assert harness.alter_isr("t", [1, 2, 3]).error_code == ErrorCode.NONE
    assert moves(harness.partition("t"))[1] == (3, 4)
    # The leader's last proposal ends the move, and with it its leadership.
    assert harness.alter_isr("t", [1, 2, 3, 4]).error_code == ErrorCode.NEW_LEADER_ELECTED
    moved = harness.partition("t")
    assert moves(moved) == ((3, 4), (), ()) and (moved.leader, moved.isr) == (3, (3, 4))
    assert moved.directories == (directory(3), directory(4)) and moved.leader_epoch == partition.leader_epoch + 1
    assert harness.send_request(ListPartitionReassignmentsRequest()).topics == []


def test_a_leader_that_stays_gets_a_new_epoch_when_other_replicas_are_removed() -> None:
    harness = make_harness()
    epoch = harness.partition("t").leader_epoch
    assert reassign(harness, [1, 3]) is ErrorCode.NONE
    result = harness.alter_isr("t", [1, 2, 3])
    assert (result.error_code, result.isr, result.leader_epoch) == (ErrorCode.NONE, [1, 3], epoch + 1)
    assert moves(harness.partition("t")) == ((1, 3), (), ())


def test_reordering_and_removing_replicas_takes_effect_at_once() -> None:
    harness = make_harness()
    assert reassign(harness, [2, 1]) is ErrorCode.NONE
    partition = harness.partition("t")
    assert moves(partition) == ((2, 1), (), ()) and partition.directories == (directory(2), directory(1))
    assert partition.leader == 1
    assert reassign(harness, [2]) is ErrorCode.NONE
    partition = harness.partition("t")
    assert moves(partition) == ((2,), (), ()) and (partition.leader, partition.isr) == (2, (2,))


def test_a_cancelled_reassignment_leaves_the_old_replicas() -> None:
    harness = make_harness()
    assert reassign(harness, None) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    reassign(harness, [3, 4])
    harness.alter_isr("t", [1, 2, 3])
    assert reassign(harness, None) is ErrorCode.NONE
    partition = harness.partition("t")
    assert moves(partition) == ((1, 2), (), ()) and (partition.leader, partition.isr) == (1, (1, 2))


def test_a_reassignment_whose_isr_has_only_added_replicas_cannot_be_cancelled() -> None:
    harness = make_harness()
    reassign(harness, [3, 4])
    harness.alter_isr("t", [1, 2, 3])
    for broker in (1, 2):
        harness.heartbeat(broker, want_fence=True)
    assert harness.partition("t").leader == 3
    assert reassign(harness, None) is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_a_reassignment_can_be_replaced_by_another() -> None:
    harness = make_harness()
    reassign(harness, [3, 4])
    assert reassign(harness, [1, 4]) is ErrorCode.NONE
    assert set(moves(harness.partition("t"))[2]) == {2, 3}
    harness.alter_isr("t", [1, 2, 4])
    assert moves(harness.partition("t")) == ((1, 4), (), ())


@pytest.mark.parametrize(
    ("replicas", "index", "code"),
    [
        ([], 0, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 9], 0, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 1], 0, ErrorCode.INVALID_REPLICA_ASSIGNMENT),
        ([1, 2, 3], 0, ErrorCode.INVALID_REPLICATION_FACTOR),
        ([1, 2], 9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_an_invalid_reassignment_is_refused(replicas: list[int], index: int, code: ErrorCode) -> None:
    harness = make_harness()
    before = len(harness.journal.written)
    assert reassign(harness, replicas, index=index, factor_may_change=False) is code
    assert len(harness.journal.written) == before

"""AlterPartitionReassignments: start, replace or cancel the move of a partition to other replicas.

The partition first has both its old and its new replicas. When the new ones are in sync, which their leader reports by AlterPartition,
the old ones are removed (`elections.Assignment.completed`). Reordering and removing replicas takes effect at once.
"""

from __future__ import annotations

from headrace.base.errors import ErrorCode, KafkaError
from headrace.controller.context import ControllerContext, Tx
from headrace.controller.elections import Assignment, change_partition
from headrace.controller.leadership import election_rules
from headrace.controller.topics import check_replicas
from headrace.metadata.image import Partition
from headrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)

PartitionResponse = AlterPartitionReassignmentsResponse.ReassignablePartitionResponse
RequestedReplicas = AlterPartitionReassignmentsRequest.ReassignablePartition


def alter(context: ControllerContext, request: AlterPartitionReassignmentsRequest, now_ms: int, tx: Tx) -> None:
    topics = []
    for topic in request.topics:
        results = []
        for requested in topic.partitions:
            response = PartitionResponse(partition_index=requested.partition_index, error_message=None)
            try:
                _alter(context, topic.name, requested, tx, factor_may_change=request.allow_replication_factor_change)
            except KafkaError as error:
                response.error_code, response.error_message = error.code, error.message or None
            results.append(response)
        topics.append(
            AlterPartitionReassignmentsResponse.ReassignableTopicResponse(name=topic.name, partitions=results)
        )
    tx.reply(
        tx.ticket,
        AlterPartitionReassignmentsResponse(
            error_message=None,
            allow_replication_factor_change=request.allow_replication_factor_change,
            responses=topics,
        ),
    )


def _alter(
    context: ControllerContext, name: str, requested: RequestedReplicas, tx: Tx, *, factor_may_change: bool
) -> None:
    topic_id = context.state.topic_ids.get(name)
    if topic_id is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find a topic named {name}.")
    partition = context.state.partitions.get((topic_id, requested.partition_index))
    if partition is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Unable to find partition {name}:{requested.partition_index}."
        )
    assignment = _cancelled(partition) if requested.replicas is None else _started(context, partition, requested)
    if requested.replicas is not None and not factor_may_change:
        _check_factor(partition, requested.replicas)
    isr = [replica for replica in partition.isr if replica in assignment.replicas]
    rules = election_rules(context, topic_id, partition)
    if not isr and partition.isr and not rules.unclean:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            "The reassignment cannot be reverted, because the ISR consists only of replicas that it added.",
        )
    change = change_partition(topic_id, requested.partition_index, partition, rules, isr=isr, assignment=assignment)
    if change is not None:
        tx.emit(change)


def _cancelled(partition: Partition) -> Assignment:
    if not partition.adding_replicas and not partition.removing_replicas:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    kept = [replica for replica in partition.replicas if replica not in partition.adding_replicas]
    return Assignment(tuple(kept))


def _started(context: ControllerContext, partition: Partition, requested: RequestedReplicas) -> Assignment:
    target = requested.replicas
    assert target is not None
    check_replicas(context, target, None)
    removing = sorted(set(partition.replicas) - set(target))
    # Replicas that an earlier reassignment is still adding may not be in sync.
    adding = sorted(set(target) - (set(partition.replicas) - set(partition.adding_replicas)))
    return Assignment((*target, *removing), tuple(adding), tuple(removing))


def _check_factor(partition: Partition, target: list[int]) -> None:
    """Raise KafkaError if the number of replicas would not be that of the partition before any reassignment."""
    factor = len(set(partition.replicas) - set(partition.adding_replicas))
    if len(target) != factor:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {factor} to {len(target)}",
        )

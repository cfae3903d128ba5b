"""AlterPartitionReassignments: reordering replicas takes effect at once.

Other changes would have to copy replicas between brokers, which this version does not support.
"""

from __future__ import annotations

from headrace.base.errors import ErrorCode, KafkaError
from headrace.controller.context import ControllerContext, Tx
from headrace.controller.topics import check_replicas
from headrace.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from headrace.protocol.messages.stored.metadata_topics import PartitionChangeRecord

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
    if requested.replicas is None:
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    check_replicas(context, requested.replicas, None)
    if not factor_may_change and len(requested.replicas) != len(partition.replicas):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"The replication factor is changed from {len(partition.replicas)} to {len(requested.replicas)}",
        )
    if sorted(requested.replicas) != sorted(partition.replicas):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "this version of Headrace does not copy replicas between brokers"
        )
    if tuple(requested.replicas) != partition.replicas:
        tx.emit(
            PartitionChangeRecord(
                partition_id=requested.partition_index, topic_id=topic_id, replicas=list(requested.replicas)
            )
        )

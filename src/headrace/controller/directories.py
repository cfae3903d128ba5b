"""AssignReplicasToDirs (KIP-858): brokers report the directory of each replica; elections check that it is online."""

from __future__ import annotations

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import Uuid
from headrace.controller import elections, leadership
from headrace.controller.brokers import check_epoch
from headrace.controller.context import ControllerContext, Tx
from headrace.metadata.image import LOST, UNASSIGNED
from headrace.metadata.records import DIRECTORIES_LEVEL
from headrace.protocol.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest, AssignReplicasToDirsResponse
from headrace.protocol.messages.stored.metadata_topics import PartitionChangeRecord


def assign(context: ControllerContext, request: AssignReplicasToDirsRequest, now_ms: int, tx: Tx) -> None:
    """Assign each replica to its directory, with a separate error for each.

    A replica in a failed directory loses leadership and leaves the ISR. A partition without a leader may get one.
    """
    if context.metadata_version < DIRECTORIES_LEVEL:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_VERSION,
            f"directories of replicas need metadata.version {DIRECTORIES_LEVEL}, the cluster has {context.metadata_version}",
        )
    broker = check_epoch(context, request.broker_id, request.broker_epoch)
    response = AssignReplicasToDirsResponse()
    for directory in request.directories:
        directory_result = AssignReplicasToDirsResponse.DirectoryData(id=directory.id)
        for topic in directory.topics:
            results = AssignReplicasToDirsResponse.TopicData(topic_id=topic.topic_id)
            for partition in topic.partitions:
                code = _assign_one(
                    context, broker.id, Uuid(topic.topic_id), partition.partition_index, Uuid(directory.id), tx
                )
                results.partitions.append(
                    AssignReplicasToDirsResponse.PartitionData(
                        partition_index=partition.partition_index, error_code=code
                    )
                )
            directory_result.topics.append(results)
        response.directories.append(directory_result)
    tx.reply(tx.ticket, response)


def _assign_one(
    context: ControllerContext, broker_id: int, topic_id: Uuid, index: int, directory: Uuid, tx: Tx
) -> ErrorCode:
    if topic_id not in context.state.topic_names:
        return ErrorCode.UNKNOWN_TOPIC_ID
    old = context.state.partitions.get((topic_id, index))
    if old is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if broker_id not in old.replicas:
        return ErrorCode.NOT_LEADER_OR_FOLLOWER
    if old.directory(broker_id) != directory:
        known = old.directories if len(old.directories) == len(old.replicas) else (UNASSIGNED,) * len(old.replicas)
        directories = [
            directory if replica == broker_id else was for replica, was in zip(old.replicas, known, strict=True)
        ]
        tx.emit(PartitionChangeRecord(partition_id=index, topic_id=topic_id, directories=directories))
    new = context.state.partitions[(topic_id, index)]
    if not leadership.has_directory(context, new, broker_id):
        change = elections.without_broker(
            topic_id,
            index,
            new,
            broker_id,
            leadership.election_rules(context, topic_id, new, without=broker_id),
            # A lost replica has no records to lead with. One in a directory that is offline may return with all of them.
            unclean_shutdown=directory == LOST,
        )
    elif not new.has_leader:
        change = elections.with_broker(topic_id, index, new, leadership.election_rules(context, topic_id, new))
    else:
        change = None
    if change is not None:
        tx.emit(change)
    return ErrorCode.NONE

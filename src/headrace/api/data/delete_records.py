"""DeleteRecords 0–2, OffsetForLeaderEpoch 2–4 and DescribeProducers 0: requests about the log of a partition."""

from __future__ import annotations

from headrace.base.clock import Clock
from headrace.base.errors import ErrorCode, KafkaError
from headrace.controller.topics import check_name
from headrace.coordinators.partitioning import INTERNAL_TOPICS
from headrace.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from headrace.protocol.messages.describe_producers import DescribeProducersRequest, DescribeProducersResponse
from headrace.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from headrace.replication.partition import Partition
from headrace.replication.replicas import Replicas
from headrace.security.resources import Operation, Resource
from headrace.server.context import RequestContext

NOTHING_DELETED = -1
_UNKNOWN = "This server does not host this topic-partition."

Deleted = DeleteRecordsResponse.DeleteRecordsPartitionResult
EpochEnd = OffsetForLeaderEpochResponse.EpochEndOffset
Producers = DescribeProducersResponse.PartitionResponse


class RecordsApi:
    def __init__(self, replicas: Replicas, clock: Clock) -> None:
        self._replicas = replicas
        self._clock = clock

    def delete(self, context: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        """Delete records below the given offsets. The leader is the only replica: there is no follower to wait for."""
        permitted = context.permitted(Operation.DELETE, Resource.TOPIC, [topic.name for topic in request.topics])
        return DeleteRecordsResponse(
            topics=[
                DeleteRecordsResponse.DeleteRecordsTopicResult(
                    name=topic.name,
                    partitions=[
                        self._delete(topic.name, wanted.partition_index, wanted.offset, topic.name in permitted)
                        for wanted in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _delete(self, topic: str, index: int, offset: int, permitted: bool) -> Deleted:
        result = Deleted(partition_index=index, low_watermark=NOTHING_DELETED)
        try:
            if not permitted:
                raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            partition = self._replicas.get(topic, index)
            if topic in INTERNAL_TOPICS:
                raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
            result.low_watermark = partition.delete_records(offset, self._clock.now_ms())
        except KafkaError as error:
            result.error_code = error.code
        return result

    def epoch_ends(self, context: RequestContext, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
        """Return where epochs end, for followers and for consumers that check for truncated records (KIP-320)."""
        names = [topic.topic for topic in request.topics]
        permitted = (
            set(names)
            if context.may(Operation.CLUSTER_ACTION, Resource.CLUSTER, quietly=True)
            else context.permitted(Operation.DESCRIBE, Resource.TOPIC, names)
        )
        return OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(
                    topic=topic.topic,
                    partitions=[
                        self._epoch_end(topic.topic, wanted)
                        if topic.topic in permitted
                        else EpochEnd(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, partition=wanted.partition)
                        for wanted in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _epoch_end(self, topic: str, wanted: OffsetForLeaderEpochRequest.OffsetForLeaderPartition) -> EpochEnd:
        result = EpochEnd(partition=wanted.partition)
        try:
            partition = self._replicas.get(topic, wanted.partition)
            partition.check_leader(wanted.current_leader_epoch)
            result.leader_epoch, result.end_offset = partition.log.end_offset_for_epoch(wanted.leader_epoch)
        except KafkaError as error:
            result.error_code = error.code
        return result

    def producers(self, context: RequestContext, request: DescribeProducersRequest) -> DescribeProducersResponse:
        permitted = context.permitted(Operation.READ, Resource.TOPIC, [topic.name for topic in request.topics])
        return DescribeProducersResponse(
            topics=[
                DescribeProducersResponse.TopicResponse(
                    name=topic.name,
                    partitions=[
                        self._producers(topic.name, index, topic.name in permitted) for index in topic.partition_indexes
                    ],
                )
                for topic in request.topics
            ]
        )

    def _producers(self, topic: str, index: int, permitted: bool) -> Producers:
        result = Producers(partition_index=index)
        try:
            check_name(topic)
            if not permitted:
                raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed.")
            partition = self._replicas.get(topic, index)
            partition.check_leader()
            result.active_producers = _active(partition)
        except KafkaError as error:
            unknown = error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            result.error_code, result.error_message = error.code, _UNKNOWN if unknown else error.message or None
        return result


def _active(partition: Partition) -> list[DescribeProducersResponse.ProducerState]:
    return [
        DescribeProducersResponse.ProducerState(
            producer_id=entry.producer_id,
            producer_epoch=entry.epoch,
            last_sequence=entry.last_sequence,
            last_timestamp=entry.last_timestamp,
            coordinator_epoch=entry.coordinator_epoch,
            current_txn_start_offset=entry.transaction_first_offset,
        )
        for entry in partition.log.producers.entries()
    ]

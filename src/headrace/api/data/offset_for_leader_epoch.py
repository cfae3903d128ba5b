"""OffsetForLeaderEpoch 2–4: where leader epochs end in the log of a partition."""

from __future__ import annotations

from headrace.api.permissions import on_topics
from headrace.base.errors import ErrorCode, KafkaError
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from headrace.replication.replicas import Replicas
from headrace.security.resources import Operation, Resource
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service

EpochEnd = OffsetForLeaderEpochResponse.EpochEndOffset


class OffsetForLeaderEpochApi:
    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    def services(self) -> list[Service]:
        return [Service(ApiKey.OFFSET_FOR_LEADER_EPOCH, (2, 4), self.handle, on_topics(Operation.DESCRIBE))]

    def handle(self, context: RequestContext, request: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:
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
                        self._epoch_end(topic.topic, requested)
                        if topic.topic in permitted
                        else EpochEnd(error_code=ErrorCode.TOPIC_AUTHORIZATION_FAILED, partition=requested.partition)
                        for requested in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _epoch_end(self, topic: str, requested: OffsetForLeaderEpochRequest.OffsetForLeaderPartition) -> EpochEnd:
        result = EpochEnd(partition=requested.partition)
        try:
            partition = self._replicas.get(topic, requested.partition)
            partition.check_leader(requested.current_leader_epoch)
            result.leader_epoch, result.end_offset = partition.log.end_offset_for_epoch(requested.leader_epoch)
        except KafkaError as error:
            result.error_code = error.code
        return result

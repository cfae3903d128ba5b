"""DeleteRecords 0–2: moves the log start of partitions."""

from __future__ import annotations

from headrace.api.permissions import on_topics
from headrace.base.clock import Clock
from headrace.base.errors import ErrorCode, KafkaError
from headrace.coordinators.partitioning import INTERNAL_TOPICS
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from headrace.replication.replicas import Replicas
from headrace.security.resources import Operation, Resource
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service

NOTHING_DELETED = -1

Deleted = DeleteRecordsResponse.DeleteRecordsPartitionResult


class DeleteRecordsApi:
    def __init__(self, replicas: Replicas, clock: Clock) -> None:
        self._replicas = replicas
        self._clock = clock

    def services(self) -> list[Service]:
        return [Service(ApiKey.DELETE_RECORDS, (0, 2), self.handle, on_topics(Operation.DELETE))]

    def handle(self, context: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        """Delete records below the given offsets. The leader is the only replica: there is no follower to wait for."""
        permitted = context.permitted(Operation.DELETE, Resource.TOPIC, [topic.name for topic in request.topics])
        return DeleteRecordsResponse(
            topics=[
                DeleteRecordsResponse.DeleteRecordsTopicResult(
                    name=topic.name,
                    partitions=[
                        self._delete(topic.name, requested.partition_index, requested.offset, topic.name in permitted)
                        for requested in topic.partitions
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

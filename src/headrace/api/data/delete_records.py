"""DeleteRecords 0–2: moves the log start of partitions."""

from __future__ import annotations

from collections.abc import Awaitable

from headrace.api.permissions import on_topics
from headrace.base.clock import Clock
from headrace.base.errors import ErrorCode, KafkaError
from headrace.coordinators.partitioning import INTERNAL_TOPICS
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.delete_records import DeleteRecordsRequest, DeleteRecordsResponse
from headrace.replication.group_commit import Acknowledgement
from headrace.replication.partition import Partition
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

    def handle(
        self, context: RequestContext, request: DeleteRecordsRequest
    ) -> DeleteRecordsResponse | Awaitable[DeleteRecordsResponse]:
        """Delete records below the given offsets, and respond when all live replicas have done so."""
        permitted = context.permitted(Operation.DELETE, Resource.TOPIC, [topic.name for topic in request.topics])
        waiting: list[tuple[Deleted, Partition, Acknowledgement]] = []
        response = DeleteRecordsResponse(
            topics=[
                DeleteRecordsResponse.DeleteRecordsTopicResult(
                    name=topic.name,
                    partitions=[
                        self._delete(topic.name, one, request.timeout_ms, topic.name in permitted, waiting)
                        for one in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )
        return self._replicated(response, waiting) if waiting else response

    def _delete(
        self,
        topic: str,
        requested: DeleteRecordsRequest.DeleteRecordsPartition,
        timeout_ms: int,
        permitted: bool,
        waiting: list[tuple[Deleted, Partition, Acknowledgement]],
    ) -> Deleted:
        result = Deleted(partition_index=requested.partition_index, low_watermark=NOTHING_DELETED)
        try:
            if not permitted:
                raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            partition = self._replicas.get(topic, requested.partition_index)
            if topic in INTERNAL_TOPICS:
                raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)
            result.low_watermark = partition.delete_records(requested.offset, self._clock.now_ms())
            deleted = partition.deleted(result.low_watermark, timeout_ms)
            if deleted is not None:
                waiting.append((result, partition, deleted))
        except KafkaError as error:
            result.error_code = error.code
        return result

    @staticmethod
    async def _replicated(
        response: DeleteRecordsResponse, waiting: list[tuple[Deleted, Partition, Acknowledgement]]
    ) -> DeleteRecordsResponse:
        for result, partition, deleted in waiting:
            error = await deleted
            if error is None:
                result.low_watermark = partition.low_watermark()
            else:
                result.error_code, result.low_watermark = error.code, NOTHING_DELETED
        return response

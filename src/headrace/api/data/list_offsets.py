"""ListOffsets 1–11: offsets by timestamp.

Special timestamps are -1 latest, -2 earliest, -3 largest timestamp (v7), -4 earliest local (v8), -5 latest tiered (v9) and
-6 earliest pending upload (v11).
"""

from __future__ import annotations

from headrace.api.permissions import on_topics
from headrace.base.errors import CorruptData, ErrorCode, KafkaError
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.list_offsets import ListOffsetsRequest, ListOffsetsResponse
from headrace.replication.partition import EARLIEST_PENDING_UPLOAD, LATEST_TIERED, MAX_TIMESTAMP
from headrace.replication.replicas import Replicas
from headrace.security.resources import Operation, Resource
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service

READ_COMMITTED = 1
LEADER_EPOCH_VERSION_MIN = 4
NOT_AVAILABLE_VERSION_MIN = 5
PartitionResponse = ListOffsetsResponse.ListOffsetsPartitionResponse
# The first version that may use each special timestamp.
_VERSION_MIN = {MAX_TIMESTAMP: 7, -4: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}


class ListOffsetsApi:
    def __init__(self, replicas: Replicas) -> None:
        self._replicas = replicas

    def services(self) -> list[Service]:
        return [Service(ApiKey.LIST_OFFSETS, (1, 11), self.handle, on_topics(Operation.DESCRIBE))]

    def handle(self, context: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
        seen: dict[tuple[str, int], int] = {}
        for topic in request.topics:
            for requested in topic.partitions:
                key = (topic.name, requested.partition_index)
                seen[key] = seen.get(key, 0) + 1
        return ListOffsetsResponse(
            topics=[
                ListOffsetsResponse.ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        self._find(context, request, topic.name, requested)
                        if times == 1
                        else PartitionResponse(
                            partition_index=requested.partition_index, error_code=ErrorCode.INVALID_REQUEST
                        )
                        for requested in topic.partitions
                        # A partition that is requested twice gets one result, with an error.
                        if (times := seen.pop((topic.name, requested.partition_index), 0))
                    ],
                )
                for topic in request.topics
            ]
        )

    def _find(
        self,
        context: RequestContext,
        request: ListOffsetsRequest,
        topic: str,
        requested: ListOffsetsRequest.ListOffsetsPartition,
    ) -> PartitionResponse:
        response = PartitionResponse(partition_index=requested.partition_index)
        try:
            is_replica = request.replica_id >= 0 and context.may(
                Operation.CLUSTER_ACTION, Resource.CLUSTER, quietly=True
            )
            if not is_replica and not context.may(Operation.DESCRIBE, Resource.TOPIC, topic):
                raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            if requested.timestamp < 0 and context.api_version < _VERSION_MIN.get(requested.timestamp, 0):
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
            if requested.timestamp < EARLIEST_PENDING_UPLOAD:
                raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)
            partition = self._replicas.get(topic, requested.partition_index)
            partition.check_leader(requested.current_leader_epoch)
            found = partition.find_offset(
                requested.timestamp,
                committed_only=request.isolation_level == READ_COMMITTED,
                for_replica=is_replica,
            )
        except KafkaError as error:
            response.error_code = error.code
            if error.code is ErrorCode.OFFSET_NOT_AVAILABLE and context.api_version < NOT_AVAILABLE_VERSION_MIN:
                response.error_code = ErrorCode.LEADER_NOT_AVAILABLE
            return response
        except (OSError, CorruptData) as error:
            self._replicas.report_unreadable(partition, error)
            corrupt = isinstance(error, CorruptData)
            response.error_code = ErrorCode.CORRUPT_MESSAGE if corrupt else ErrorCode.KAFKA_STORAGE_ERROR
            return response
        if found is not None:
            response.offset, response.timestamp = found.offset, found.timestamp
            if context.api_version >= LEADER_EPOCH_VERSION_MIN:
                response.leader_epoch = found.leader_epoch
        return response

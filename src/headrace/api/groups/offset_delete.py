"""OffsetDelete 0: deletes committed offsets of a group."""

from __future__ import annotations

from collections.abc import Callable

from headrace.api.groups.group_decisions import coordinator_request
from headrace.api.groups.offset_commit import topic_refusal
from headrace.api.permissions import on_groups
from headrace.base.errors import ErrorCode, KafkaError
from headrace.broker.shard_runner import Coordination
from headrace.coordinators.group.shard import GroupShard
from headrace.metadata.image import Image
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from headrace.security.resources import Operation, Resource
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service

DeleteTopic = OffsetDeleteRequest.OffsetDeleteRequestTopic
DeletedTopic = OffsetDeleteResponse.OffsetDeleteResponseTopic
Deleted = OffsetDeleteResponse.OffsetDeleteResponsePartition


class OffsetDeleteApi:
    def __init__(self, groups: Coordination[GroupShard], image: Callable[[], Image]) -> None:
        self._groups = groups
        self._image = image

    def services(self) -> list[Service]:
        return [Service(ApiKey.OFFSET_DELETE, (0, 0), self.handle, on_groups(Operation.DELETE))]

    async def handle(self, context: RequestContext, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
        if not context.may(Operation.DELETE, Resource.GROUP, request.group_id):
            return OffsetDeleteResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if not request.group_id:
            return OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)
        permitted = context.permitted(Operation.READ, Resource.TOPIC, [topic.name for topic in request.topics])
        response, left = OffsetDeleteResponse(), list[DeleteTopic]()
        left_results: list[list[Deleted]] = []
        for topic in request.topics:
            topic_response = DeletedTopic(topic.name)
            response.topics.append(topic_response)
            known = self._image().topics.get(topic.name)
            code = topic_refusal(known, False, True, topic.name in permitted)
            good = []
            for partition in topic.partitions:
                if code is ErrorCode.NONE and known and 0 <= partition.partition_index < len(known.partitions):
                    good.append(partition)
                else:
                    refused = code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    topic_response.partitions.append(Deleted(partition.partition_index, refused))
            if good:
                left.append(DeleteTopic(topic.name, good))
                left_results.append(topic_response.partitions)
        try:
            accepted = coordinator_request(context, OffsetDeleteRequest(request.group_id, left))
            decided: OffsetDeleteResponse = await self._groups.decide(request.group_id, accepted)
        except KafkaError as error:
            return OffsetDeleteResponse(error_code=error.code)
        for results, decided_topic in zip(left_results, decided.topics, strict=True):
            results += decided_topic.partitions
        return response

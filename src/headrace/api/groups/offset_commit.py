"""OffsetCommit 2–10: commits offsets of a group, by topic name or id (v10)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from headrace.api.groups.group_decisions import coordinator_request, request_decision
from headrace.api.permissions import on_groups
from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import Uuid
from headrace.broker.shard_runner import Coordination
from headrace.coordinators.group.shard import GroupShard
from headrace.metadata.image import Image, Topic
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from headrace.security.resources import Operation, Resource
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service

TOPIC_IDS_VERSION_MIN = 10

CommitTopic = OffsetCommitRequest.OffsetCommitRequestTopic
CommitPartition = OffsetCommitRequest.OffsetCommitRequestPartition
CommittedTopic = OffsetCommitResponse.OffsetCommitResponseTopic
Committed = OffsetCommitResponse.OffsetCommitResponsePartition


class OffsetCommitApi:
    def __init__(self, groups: Coordination[GroupShard], image: Callable[[], Image]) -> None:
        self._groups = groups
        self._image = image

    def services(self) -> list[Service]:
        return [Service(ApiKey.OFFSET_COMMIT, (2, 10), self.handle, on_groups(Operation.READ))]

    def handle(
        self, context: RequestContext, request: OffsetCommitRequest
    ) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
        by_id = context.api_version >= TOPIC_IDS_VERSION_MIN
        found = [self._find(topic.name, topic.topic_id, by_id) for topic in request.topics]
        if context.peer.authority.unrestricted and request.topics and all(map(_has_all, found, request.topics)):
            return self._commit_all(context, request, found)
        names = [known.name if known else topic.name for topic, known in zip(request.topics, found, strict=True)]
        allowed = context.may(Operation.READ, Resource.GROUP, request.group_id)
        permitted = context.permitted(Operation.READ, Resource.TOPIC, names) if allowed else set()
        response, left = OffsetCommitResponse(), list[CommitTopic]()
        left_results: list[list[Committed]] = []  # where the results of each topic in `left` are added
        for topic, known, name in zip(request.topics, found, names, strict=True):
            topic_response = CommittedTopic(topic.name, topic.topic_id)
            response.topics.append(topic_response)
            code = topic_refusal(known, by_id, allowed, name in permitted)
            good: list[CommitPartition] = []
            for partition in topic.partitions:
                if code is ErrorCode.NONE and known and 0 <= partition.partition_index < len(known.partitions):
                    good.append(partition)
                else:
                    refused = code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    topic_response.partitions.append(Committed(partition.partition_index, refused))
            if good and known:
                left.append(CommitTopic(known.name, known.id, good))
                left_results.append(topic_response.partitions)
        if not left:
            return response
        accepted = OffsetCommitRequest(
            request.group_id,
            request.generation_id_or_member_epoch,
            request.member_id,
            request.group_instance_id,
            request.retention_time_ms,
            left,
        )
        decided = self._decide(context, accepted)
        if isinstance(decided, OffsetCommitResponse):
            return _filled(response, left_results, decided)
        return _filled_later(response, left_results, decided)

    def _commit_all(
        self, context: RequestContext, request: OffsetCommitRequest, found: list[Topic | None]
    ) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
        """Commit in the common case: all partitions exist and the client is unrestricted."""
        for topic, known in zip(request.topics, found, strict=True):
            assert known is not None
            topic.name, topic.topic_id = known.name, known.id
        return self._decide(context, request)

    def _decide(
        self, context: RequestContext, accepted: OffsetCommitRequest
    ) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
        def refused(error: KafkaError) -> OffsetCommitResponse:
            return OffsetCommitResponse(
                topics=[
                    CommittedTopic(
                        topic.name,
                        topic.topic_id,
                        [Committed(partition.partition_index, error.code) for partition in topic.partitions],
                    )
                    for topic in accepted.topics
                ]
            )

        return request_decision(self._groups, accepted.group_id, coordinator_request(context, accepted), refused)

    def _find(self, name: str, topic_id: Uuid, by_id: bool) -> Topic | None:
        return self._image().topic_by_id(topic_id) if by_id else self._image().topics.get(name)


def _has_all(known: Topic | None, accepted: CommitTopic) -> bool:
    if known is None:
        return False
    count = len(known.partitions)
    return bool(accepted.partitions) and all(0 <= one.partition_index < count for one in accepted.partitions)


def _filled(
    response: OffsetCommitResponse, left_results: list[list[Committed]], decided: OffsetCommitResponse
) -> OffsetCommitResponse:
    for results, topic in zip(left_results, decided.topics, strict=True):
        results += topic.partitions
    return response


async def _filled_later(
    response: OffsetCommitResponse, left_results: list[list[Committed]], decided: Awaitable[OffsetCommitResponse]
) -> OffsetCommitResponse:
    return _filled(response, left_results, await decided)


def topic_refusal(known: Topic | None, by_id: bool, allowed: bool, permitted: bool) -> ErrorCode:
    if not allowed:
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    if known is None and by_id:
        return ErrorCode.UNKNOWN_TOPIC_ID
    if not permitted:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return ErrorCode.NONE if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

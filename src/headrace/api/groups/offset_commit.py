"""OffsetCommit 2–10, OffsetFetch 1–10 and OffsetDelete 0: committed offsets of groups, by topic name or id (v10)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from headrace.api.groups.classic_groups import answer_of, asked_by
from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import ZERO_UUID, Uuid
from headrace.broker.shard_runner import Coordination
from headrace.coordinators.group.offset_reads import (
    NO_OFFSET,
    FetchedGroup,
    FetchedTopic,
    FetchGroup,
    fetch,
)
from headrace.coordinators.group.shard import GroupShard
from headrace.metadata.image import Image, Topic
from headrace.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from headrace.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from headrace.security.resources import Operation, Resource
from headrace.server.context import RequestContext

TOPIC_IDS_VERSION_MIN = 10
MANY_GROUPS_VERSION_MIN = 8  # OffsetFetch version from which a request names several groups
WHOLE_ERROR_VERSION_MIN = 2  # OffsetFetch version with a top-level error; before it, each partition carries the error

CommitTopic = OffsetCommitRequest.OffsetCommitRequestTopic
CommitPartition = OffsetCommitRequest.OffsetCommitRequestPartition
CommittedTopic = OffsetCommitResponse.OffsetCommitResponseTopic
Committed = OffsetCommitResponse.OffsetCommitResponsePartition
DeleteTopic = OffsetDeleteRequest.OffsetDeleteRequestTopic
DeletedTopic = OffsetDeleteResponse.OffsetDeleteResponseTopic
Deleted = OffsetDeleteResponse.OffsetDeleteResponsePartition
FetchTopic = OffsetFetchRequest.OffsetFetchRequestTopics
Fetched = OffsetFetchResponse.OffsetFetchResponsePartitions
OldFetchedTopic = OffsetFetchResponse.OffsetFetchResponseTopic
OldFetched = OffsetFetchResponse.OffsetFetchResponsePartition


class CommittedOffsetsApi:
    def __init__(self, groups: Coordination[GroupShard], image: Callable[[], Image]) -> None:
        self._groups = groups
        self._image = image

    # --- OffsetCommit

    def commit(
        self, context: RequestContext, request: OffsetCommitRequest
    ) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
        by_id = context.api_version >= TOPIC_IDS_VERSION_MIN
        found = [self._find(topic.name, topic.topic_id, by_id) for topic in request.topics]
        if context.peer.authority.unrestricted and request.topics and all(map(_has_all, found, request.topics)):
            return self._commit_all(context, request, found)
        names = [known.name if known else topic.name for topic, known in zip(request.topics, found, strict=True)]
        allowed = context.may(Operation.READ, Resource.GROUP, request.group_id)
        permitted = context.permitted(Operation.READ, Resource.TOPIC, names) if allowed else set()
        answer, left = OffsetCommitResponse(), list[CommitTopic]()
        places: list[list[Committed]] = []  # where the results of each topic in `left` are added
        for topic, known, name in zip(request.topics, found, names, strict=True):
            answered = CommittedTopic(topic.name, topic.topic_id)
            answer.topics.append(answered)
            code = _refusal(known, by_id, allowed, name in permitted)
            good: list[CommitPartition] = []
            for partition in topic.partitions:
                if code is ErrorCode.NONE and known and 0 <= partition.partition_index < len(known.partitions):
                    good.append(partition)
                else:
                    refused = code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    answered.partitions.append(Committed(partition.partition_index, refused))
            if good and known:
                left.append(CommitTopic(known.name, known.id, good))
                places.append(answered.partitions)
        if not left:
            return answer
        asked = OffsetCommitRequest(
            request.group_id,
            request.generation_id_or_member_epoch,
            request.member_id,
            request.group_instance_id,
            request.retention_time_ms,
            left,
        )
        decided = self._decide(context, asked)
        if isinstance(decided, OffsetCommitResponse):
            return _filled(answer, places, decided)
        return _filled_later(answer, places, decided)

    def _commit_all(
        self, context: RequestContext, request: OffsetCommitRequest, found: list[Topic | None]
    ) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
        """Commit in the common case: all partitions exist and the client is unrestricted."""
        for topic, known in zip(request.topics, found, strict=True):
            assert known is not None
            topic.name, topic.topic_id = known.name, known.id
        return self._decide(context, request)

    def _decide(
        self, context: RequestContext, asked: OffsetCommitRequest
    ) -> OffsetCommitResponse | Awaitable[OffsetCommitResponse]:
        def refused(error: KafkaError) -> OffsetCommitResponse:
            return OffsetCommitResponse(
                topics=[
                    CommittedTopic(
                        topic.name,
                        topic.topic_id,
                        [Committed(partition.partition_index, error.code) for partition in topic.partitions],
                    )
                    for topic in asked.topics
                ]
            )

        return answer_of(self._groups, asked.group_id, asked_by(context, asked), refused)

    def _find(self, name: str, topic_id: Uuid, by_id: bool) -> Topic | None:
        return self._image().topic_by_id(topic_id) if by_id else self._image().topics.get(name)

    # --- OffsetFetch

    async def fetch(self, context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
        if context.api_version >= MANY_GROUPS_VERSION_MIN:
            groups = [self._fetch(context, group, request.require_stable) for group in request.groups]
            return OffsetFetchResponse(groups=list(await asyncio.gather(*groups)))
        topics = None
        if request.topics is not None:
            topics = [
                FetchTopic(name=topic.name, partition_indexes=topic.partition_indexes) for topic in request.topics
            ]
        wanted = FetchGroup(group_id=request.group_id, topics=topics)
        group = await self._fetch(context, wanted, request.require_stable)
        if group.error_code and context.api_version < WHOLE_ERROR_VERSION_MIN:
            group.topics = [_failed(topic, group.error_code) for topic in topics or []]
        return OffsetFetchResponse(
            error_code=group.error_code,
            topics=[
                OldFetchedTopic(topic.name, [_old(partition) for partition in topic.partitions])
                for topic in group.topics
            ],
        )

    async def _fetch(self, context: RequestContext, wanted: FetchGroup, stable: bool) -> FetchedGroup:
        try:
            if not context.may(Operation.DESCRIBE, Resource.GROUP, wanted.group_id):
                raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
            if wanted.topics is None:
                return await self._fetch_all(context, wanted, stable)
            return await self._fetch_named(context, wanted, wanted.topics, stable)
        except KafkaError as error:
            # Old consumers do not look up the coordinator again after COORDINATOR_NOT_AVAILABLE.
            lost = error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
            return FetchedGroup(wanted.group_id, error_code=ErrorCode.NOT_COORDINATOR if lost else error.code)

    async def _read(self, context: RequestContext, wanted: FetchGroup, stable: bool) -> FetchedGroup:
        if stable:
            answer: FetchedGroup = await self._groups.decide(wanted.group_id, asked_by(context, wanted))
            return answer
        return fetch(self._groups.machine_of(wanted.group_id), wanted)

    async def _fetch_all(self, context: RequestContext, wanted: FetchGroup, stable: bool) -> FetchedGroup:
        """Read all offsets of a group, without topics that the client may not describe.

        From version 10 on, where topics are identified by id, deleted topics are left out too.
        """
        group = await self._read(context, wanted, stable)
        names = [topic.name for topic in group.topics]
        permitted = context.permitted(Operation.DESCRIBE, Resource.TOPIC, names, quietly=True)
        group.topics = [topic for topic in group.topics if topic.name in permitted]
        if context.api_version >= TOPIC_IDS_VERSION_MIN:
            topics = self._image().topics
            for topic in group.topics:
                known = topics.get(topic.name)
                topic.topic_id = ZERO_UUID if known is None else known.id
            group.topics = [topic for topic in group.topics if topic.topic_id != ZERO_UUID]
        return group

    async def _fetch_named(
        self, context: RequestContext, wanted: FetchGroup, topics: list[FetchTopic], stable: bool
    ) -> FetchedGroup:
        by_id = context.api_version >= TOPIC_IDS_VERSION_MIN
        answers: list[FetchedTopic | None] = []
        left: list[FetchTopic] = []
        for topic in topics:
            known = self._find("", topic.topic_id, True) if by_id else None
            name = known.name if known else topic.name
            if by_id and known is None:
                answers.append(_failed(topic, ErrorCode.UNKNOWN_TOPIC_ID))
            elif not context.may(Operation.DESCRIBE, Resource.TOPIC, name):
                answers.append(_failed(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            else:
                answers.append(None)
                left.append(FetchTopic(name, topic.topic_id, topic.partition_indexes))
        asked = FetchGroup(wanted.group_id, wanted.member_id, wanted.member_epoch, left)
        read = iter((await self._read(context, asked, stable)).topics)
        return FetchedGroup(wanted.group_id, [next(read) if answer is None else answer for answer in answers])

    # --- OffsetDelete

    async def delete(self, context: RequestContext, request: OffsetDeleteRequest) -> OffsetDeleteResponse:
        if not context.may(Operation.DELETE, Resource.GROUP, request.group_id):
            return OffsetDeleteResponse(error_code=ErrorCode.GROUP_AUTHORIZATION_FAILED)
        if not request.group_id:
            return OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)
        permitted = context.permitted(Operation.READ, Resource.TOPIC, [topic.name for topic in request.topics])
        answer, left = OffsetDeleteResponse(), list[DeleteTopic]()
        places: list[list[Deleted]] = []
        for topic in request.topics:
            answered = DeletedTopic(topic.name)
            answer.topics.append(answered)
            known = self._image().topics.get(topic.name)
            code = _refusal(known, False, True, topic.name in permitted)
            good = []
            for partition in topic.partitions:
                if code is ErrorCode.NONE and known and 0 <= partition.partition_index < len(known.partitions):
                    good.append(partition)
                else:
                    refused = code or ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    answered.partitions.append(Deleted(partition.partition_index, refused))
            if good:
                left.append(DeleteTopic(topic.name, good))
                places.append(answered.partitions)
        try:
            asked = asked_by(context, OffsetDeleteRequest(request.group_id, left))
            decided: OffsetDeleteResponse = await self._groups.decide(request.group_id, asked)
        except KafkaError as error:
            return OffsetDeleteResponse(error_code=error.code)
        for place, decided_topic in zip(places, decided.topics, strict=True):
            place += decided_topic.partitions
        return answer


def _has_all(known: Topic | None, asked: CommitTopic) -> bool:
    if known is None:
        return False
    count = len(known.partitions)
    return bool(asked.partitions) and all(0 <= one.partition_index < count for one in asked.partitions)


def _filled(
    answer: OffsetCommitResponse, places: list[list[Committed]], decided: OffsetCommitResponse
) -> OffsetCommitResponse:
    for place, topic in zip(places, decided.topics, strict=True):
        place += topic.partitions
    return answer


async def _filled_later(
    answer: OffsetCommitResponse, places: list[list[Committed]], decided: Awaitable[OffsetCommitResponse]
) -> OffsetCommitResponse:
    return _filled(answer, places, await decided)


def _refusal(known: Topic | None, by_id: bool, allowed: bool, permitted: bool) -> ErrorCode:
    if not allowed:
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    if known is None and by_id:
        return ErrorCode.UNKNOWN_TOPIC_ID
    if not permitted:
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return ErrorCode.NONE if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _failed(topic: FetchTopic, code: int) -> FetchedTopic:
    partitions = [Fetched(index, NO_OFFSET, error_code=code) for index in topic.partition_indexes]
    return FetchedTopic(topic.name, topic.topic_id, partitions)


def _old(partition: Fetched) -> OldFetched:
    return OldFetched(
        partition.partition_index,
        partition.committed_offset,
        partition.committed_leader_epoch,
        partition.metadata,
        partition.error_code,
    )

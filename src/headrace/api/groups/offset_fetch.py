"""OffsetFetch 1–10: committed offsets of groups, by topic name or id (v10)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from headrace.api.groups.group_decisions import coordinator_request
from headrace.api.permissions import on_groups
from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import ZERO_UUID
from headrace.broker.shard_runner import Coordination
from headrace.coordinators.group.offset_reads import (
    NO_OFFSET,
    FetchedGroup,
    FetchedTopic,
    FetchGroup,
    fetch,
)
from headrace.coordinators.group.shard import GroupShard
from headrace.metadata.image import Image
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from headrace.security.resources import Operation, Resource
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service

TOPIC_IDS_VERSION_MIN = 10
MANY_GROUPS_VERSION_MIN = 8  # version from which a request names several groups
WHOLE_ERROR_VERSION_MIN = 2  # version with a top-level error; before it, each partition carries the error

FetchTopic = OffsetFetchRequest.OffsetFetchRequestTopics
Fetched = OffsetFetchResponse.OffsetFetchResponsePartitions
OldFetchedTopic = OffsetFetchResponse.OffsetFetchResponseTopic
OldFetched = OffsetFetchResponse.OffsetFetchResponsePartition


class OffsetFetchApi:
    def __init__(self, groups: Coordination[GroupShard], image: Callable[[], Image]) -> None:
        self._groups = groups
        self._image = image

    def services(self) -> list[Service]:
        return [Service(ApiKey.OFFSET_FETCH, (1, 10), self.handle, on_groups(Operation.DESCRIBE))]

    async def handle(self, context: RequestContext, request: OffsetFetchRequest) -> OffsetFetchResponse:
        if context.api_version >= MANY_GROUPS_VERSION_MIN:
            groups = [self._fetch(context, group, request.require_stable) for group in request.groups]
            return OffsetFetchResponse(groups=list(await asyncio.gather(*groups)))
        topics = None
        if request.topics is not None:
            topics = [
                FetchTopic(name=topic.name, partition_indexes=topic.partition_indexes) for topic in request.topics
            ]
        requested = FetchGroup(group_id=request.group_id, topics=topics)
        group = await self._fetch(context, requested, request.require_stable)
        if group.error_code and context.api_version < WHOLE_ERROR_VERSION_MIN:
            group.topics = [_failed(topic, group.error_code) for topic in topics or []]
        return OffsetFetchResponse(
            error_code=group.error_code,
            topics=[
                OldFetchedTopic(topic.name, [_old(partition) for partition in topic.partitions])
                for topic in group.topics
            ],
        )

    async def _fetch(self, context: RequestContext, requested: FetchGroup, stable: bool) -> FetchedGroup:
        try:
            if not context.may(Operation.DESCRIBE, Resource.GROUP, requested.group_id):
                raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
            if requested.topics is None:
                return await self._fetch_all(context, requested, stable)
            return await self._fetch_named(context, requested, requested.topics, stable)
        except KafkaError as error:
            # Old consumers do not look up the coordinator again after COORDINATOR_NOT_AVAILABLE.
            lost = error.code is ErrorCode.COORDINATOR_NOT_AVAILABLE
            return FetchedGroup(requested.group_id, error_code=ErrorCode.NOT_COORDINATOR if lost else error.code)

    async def _read(self, context: RequestContext, requested: FetchGroup, stable: bool) -> FetchedGroup:
        if stable:
            response: FetchedGroup = await self._groups.decide(
                requested.group_id, coordinator_request(context, requested)
            )
            return response
        return fetch(self._groups.machine_of(requested.group_id), requested)

    async def _fetch_all(self, context: RequestContext, requested: FetchGroup, stable: bool) -> FetchedGroup:
        """Read all offsets of a group, without topics that the client may not describe.

        From version 10 on, where topics are identified by id, deleted topics are left out too.
        """
        group = await self._read(context, requested, stable)
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
        self, context: RequestContext, requested: FetchGroup, topics: list[FetchTopic], stable: bool
    ) -> FetchedGroup:
        by_id = context.api_version >= TOPIC_IDS_VERSION_MIN
        topic_responses: list[FetchedTopic | None] = []
        left: list[FetchTopic] = []
        for topic in topics:
            known = self._image().topic_by_id(topic.topic_id) if by_id else None
            name = known.name if known else topic.name
            if by_id and known is None:
                topic_responses.append(_failed(topic, ErrorCode.UNKNOWN_TOPIC_ID))
            elif not context.may(Operation.DESCRIBE, Resource.TOPIC, name):
                topic_responses.append(_failed(topic, ErrorCode.TOPIC_AUTHORIZATION_FAILED))
            else:
                topic_responses.append(None)
                left.append(FetchTopic(name, topic.topic_id, topic.partition_indexes))
        accepted = FetchGroup(requested.group_id, requested.member_id, requested.member_epoch, left)
        read = iter((await self._read(context, accepted, stable)).topics)
        return FetchedGroup(
            requested.group_id, [next(read) if response is None else response for response in topic_responses]
        )


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

"""ConsumerGroupHeartbeat 0–1 and ConsumerGroupDescribe 0–1: consumer groups (KIP-848, KIP-1099)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from headrace.api.groups.group_decisions import request_decision
from headrace.api.permissions import on_groups
from headrace.base.errors import ErrorCode, KafkaError
from headrace.broker.shard_runner import Coordination
from headrace.coordinators.group.consumer.description import describe
from headrace.coordinators.group.request import CoordinatorRequest
from headrace.coordinators.group.shard import GroupShard
from headrace.metadata.image import Image
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from headrace.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from headrace.security.resources import Operation, Resource
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service

GROUP_VERSION = "group.version"
HIDDEN_TOPICS = "The group has described topic(s) that the client is not authorized to describe."

# Kafka lists groups with these errors first; the others keep the order of the request.
REFUSED_FIRST = {ErrorCode.GROUP_AUTHORIZATION_FAILED: 0, ErrorCode.INVALID_GROUP_ID: 1}

_Described = ConsumerGroupDescribeResponse.DescribedGroup


class ConsumerGroupsApi:
    """Handlers of the consumer group protocol.

    `is_enabled` is whether `group.coordinator.rebalance.protocols` includes that protocol.
    """

    def __init__(self, groups: Coordination[GroupShard], image: Callable[[], Image], *, is_enabled: bool) -> None:
        self._groups = groups
        self._image = image
        self._is_enabled = is_enabled

    def services(self) -> list[Service]:
        return [
            Service(ApiKey.CONSUMER_GROUP_HEARTBEAT, (0, 1), self.heartbeat, on_groups(Operation.READ)),
            Service(ApiKey.CONSUMER_GROUP_DESCRIBE, (0, 1), self.describe, on_groups(Operation.DESCRIBE)),
        ]

    def heartbeat(
        self, context: RequestContext, request: ConsumerGroupHeartbeatRequest
    ) -> ConsumerGroupHeartbeatResponse | Awaitable[ConsumerGroupHeartbeatResponse]:
        try:
            self._check(context, request)
        except KafkaError as error:
            return _refused(error)
        coordinator_request = CoordinatorRequest(
            request,
            context.api_version,
            context.client_id or "",
            f"/{context.peer.address}",
            partial(_may_describe, context),
        )
        return request_decision(self._groups, request.group_id, coordinator_request, _refused)

    def _check(self, context: RequestContext, request: ConsumerGroupHeartbeatRequest) -> None:
        self._check_feature()
        if not context.may(Operation.READ, Resource.GROUP, request.group_id):
            raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
        names = dict.fromkeys(request.subscribed_topic_names or ())
        if len(context.permitted(Operation.DESCRIBE, Resource.TOPIC, names)) < len(names):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED)

    def _check_feature(self) -> None:
        if not self._is_enabled or self._image().features.get(GROUP_VERSION, 0) < 1:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION)

    async def describe(
        self, context: RequestContext, request: ConsumerGroupDescribeRequest
    ) -> ConsumerGroupDescribeResponse:
        groups = [self._describe(context, group_id) for group_id in request.group_ids]
        groups.sort(key=lambda group: REFUSED_FIRST.get(ErrorCode(group.error_code), len(REFUSED_FIRST)))
        if request.include_authorized_operations:
            for group in groups:
                if group.error_code == ErrorCode.NONE:
                    group.authorized_operations = context.operations(Resource.GROUP, group.group_id)
        return ConsumerGroupDescribeResponse(groups=groups)

    def _describe(self, context: RequestContext, group_id: str) -> _Described:
        try:
            self._check_feature()
            if not context.may(Operation.DESCRIBE, Resource.GROUP, group_id):
                raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
            if not group_id:
                raise KafkaError(ErrorCode.INVALID_GROUP_ID)
            group = describe(self._groups.machine_of(group_id), group_id)
            names = dict.fromkeys(name for member in group.members for name in _topics(member))
            if len(context.permitted(Operation.DESCRIBE, Resource.TOPIC, names)) < len(names):
                raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, HIDDEN_TOPICS)
        except KafkaError as error:
            return _Described(group_id=group_id, error_code=error.code, error_message=error.message or None)
        return group


def _refused(error: KafkaError) -> ConsumerGroupHeartbeatResponse:
    return ConsumerGroupHeartbeatResponse(error_code=error.code, error_message=error.message or None)


def _topics(member: ConsumerGroupDescribeResponse.Member) -> list[str]:
    assigned = [*member.assignment.topic_partitions, *member.target_assignment.topic_partitions]
    return [*member.subscribed_topic_names, *(topic.topic_name for topic in assigned)]


def _may_describe(context: RequestContext, topic: str) -> bool:
    return context.may(Operation.DESCRIBE, Resource.TOPIC, topic, quietly=True)

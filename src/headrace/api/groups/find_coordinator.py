"""FindCoordinator 0–6: the broker that coordinates a group or a transactional id.

The internal topic is created on first use. Share groups have no coordinator yet, so requests for one are refused. librdkafka uses lz4
only with brokers that list this API.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from headrace.api.permissions import on_groups
from headrace.base.errors import ErrorCode
from headrace.broker.topic_creation import TopicCreation
from headrace.coordinators.partitioning import GROUPS_TOPIC, TRANSACTIONS_TOPIC, coordinator_partition
from headrace.metadata.image import Image
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from headrace.security.resources import Operation, Resource
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service

MANY_KEYS_VERSION_MIN = 4
GROUP_KEY, TRANSACTION_KEY, SHARE_KEY = 0, 1, 2
_TOPICS = {GROUP_KEY: GROUPS_TOPIC, TRANSACTION_KEY: TRANSACTIONS_TOPIC}
_REASONS = {
    ErrorCode.NONE: "",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "The coordinator is not available.",
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Group authorization failed.",
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Transactional Id authorization failed.",
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: "Cluster authorization failed.",
    ErrorCode.INVALID_REQUEST: "The type of the key is unknown.",
}
_ALLOWED = {
    GROUP_KEY: (Resource.GROUP, Operation.DESCRIBE, ErrorCode.GROUP_AUTHORIZATION_FAILED),
    TRANSACTION_KEY: (
        Resource.TRANSACTIONAL_ID,
        Operation.DESCRIBE,
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
}


class _Found(NamedTuple):
    code: ErrorCode
    node_id: int = -1
    host: str = ""
    port: int = -1


class Coordinator(Protocol):
    def leads(self, key: str) -> bool:
        """Return whether this broker runs the shard of the group or transactional id, loaded or loading."""


class FindCoordinatorApi:
    def __init__(
        self,
        image: Callable[[], Image],
        creation: TopicCreation,
        node_id: int,
        groups: Coordinator,
        transactions: Coordinator,
    ) -> None:
        self._image = image
        self._creation = creation
        self._node_id = node_id
        self._coordinators = {GROUP_KEY: groups, TRANSACTION_KEY: transactions}

    def services(self) -> list[Service]:
        return [Service(ApiKey.FIND_COORDINATOR, (0, 6), self.handle, on_groups(Operation.DESCRIBE))]

    async def handle(self, context: RequestContext, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
        many = context.api_version >= MANY_KEYS_VERSION_MIN
        keys = request.coordinator_keys if many else [request.key]
        codes = {key: _check(context, request.key_type, key) for key in keys}
        if ErrorCode.NONE in codes.values():
            await self._make_topic(request.key_type)
        found = [self._find(context, request.key_type, key, codes[key]) for key in keys]
        if many:
            coordinators = [
                FindCoordinatorResponse.Coordinator(
                    key=key,
                    node_id=one.node_id,
                    host=one.host,
                    port=one.port,
                    error_code=one.code,
                    error_message=_REASONS[one.code],
                )
                for key, one in zip(keys, found, strict=True)
            ]
            return FindCoordinatorResponse(coordinators=coordinators)
        one = found[0]
        return FindCoordinatorResponse(
            error_code=one.code,
            error_message=_REASONS[one.code] or "NONE",
            node_id=one.node_id,
            host=one.host,
            port=one.port,
        )

    async def _make_topic(self, key_type: int) -> None:
        """Create the internal topic on the node's behalf: clients need no permission to create it."""
        topic = _TOPICS[key_type]
        if topic not in self._image().topics:
            await self._creation.create_internal(topic)

    def _find(self, context: RequestContext, key_type: int, key: str, refused: ErrorCode) -> _Found:
        if refused is not ErrorCode.NONE:
            return _Found(refused)
        image = self._image()
        topic = image.topics.get(_TOPICS[key_type])
        if topic is None:
            return _Found(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        leader = topic.partitions[coordinator_partition(key, len(topic.partitions))].leader
        broker = image.brokers.get(leader)
        endpoint = None if broker is None or broker.fenced else broker.endpoint(context.peer.listener)
        if endpoint is None:
            return _Found(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        # Metadata names this broker before it has opened the partition; a client sent here now would be refused.
        if leader == self._node_id and not self._coordinators[key_type].leads(key):
            return _Found(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return _Found(ErrorCode.NONE, leader, endpoint.host, endpoint.port)


def _check(context: RequestContext, key_type: int, key: str) -> ErrorCode:
    if key_type == SHARE_KEY:
        if not context.may(Operation.CLUSTER_ACTION, Resource.CLUSTER):
            return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    allowed = _ALLOWED.get(key_type)
    if allowed is None:
        return ErrorCode.INVALID_REQUEST
    resource, operation, code = allowed
    if not context.may(operation, resource, key):
        return code
    return ErrorCode.NONE

"""Administrative requests to the controller, direct or forwarded: options, partitions, elections, features, brokers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from headrace.api.error_responses import refuse
from headrace.api.permissions import ALTER_CLUSTER, DESCRIBE_CLUSTER, on_topics
from headrace.base.errors import ErrorCode, KafkaError
from headrace.metadata.image import GROUP_CONFIG, TOPIC_CONFIG
from headrace.metadata.state import KRAFT_VERSION
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from headrace.protocol.messages.update_features import UpdateFeaturesRequest, UpdateFeaturesResponse
from headrace.quorum.voter_changes import VoterChanges
from headrace.raft.membership import DYNAMIC_KRAFT_VERSION
from headrace.security.resources import Operation, Resource
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service

Decide = Callable[[Any, Callable[[ErrorCode, str], Any]], Awaitable[Any]]

_REFUSED = {
    Resource.TOPIC: (ErrorCode.TOPIC_AUTHORIZATION_FAILED, "Topic authorization failed."),
    Resource.GROUP: (ErrorCode.GROUP_AUTHORIZATION_FAILED, "Group authorization failed."),
    Resource.CLUSTER: (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed."),
}


class ControllerAdminApi:
    """Handles administrative requests; `changes` upgrades kraft.version, which the quorum itself keeps."""

    def __init__(self, decide: Decide, changes: VoterChanges) -> None:
        self._decide = decide
        self._changes = changes

    def services(self) -> list[Service]:
        return [
            Service(ApiKey.ALTER_CONFIGS, (0, 2), self.alter_configs, on_topics(Operation.ALTER_CONFIGS)),
            Service(ApiKey.INCREMENTAL_ALTER_CONFIGS, (0, 1), self.alter_configs, on_topics(Operation.ALTER_CONFIGS)),
            Service(ApiKey.CREATE_PARTITIONS, (0, 3), self.create_partitions, on_topics(Operation.ALTER)),
            Service(ApiKey.ELECT_LEADERS, (0, 2), self.handle, ALTER_CLUSTER, refuse),
            Service(ApiKey.ALTER_PARTITION_REASSIGNMENTS, (0, 1), self.handle, ALTER_CLUSTER, refuse),
            Service(ApiKey.LIST_PARTITION_REASSIGNMENTS, (0, 0), self.handle, DESCRIBE_CLUSTER, refuse),
            Service(ApiKey.UPDATE_FEATURES, (0, 2), self.update_features, ALTER_CLUSTER, refuse),
            Service(ApiKey.UNREGISTER_BROKER, (0, 0), self.handle, ALTER_CLUSTER, refuse),
        ]

    async def handle(self, context: RequestContext, request: Any) -> Any:
        """Decide on a request that needs a permission on the cluster, which the dispatcher has checked."""
        return await self._decide(request, lambda code, text: refuse(request, code, text))

    async def update_features(self, context: RequestContext, request: UpdateFeaturesRequest) -> Any:
        """Decide on the levels of all features, then let the quorum upgrade its own."""
        is_dynamic = any(
            one.feature == KRAFT_VERSION and one.max_version_level >= DYNAMIC_KRAFT_VERSION
            for one in request.feature_updates
        )
        try:
            if is_dynamic:
                self._changes.check_upgrade()
            response: UpdateFeaturesResponse = await self.handle(context, request)
            if is_dynamic and response.error_code == ErrorCode.NONE and not request.validate_only:
                await self._changes.upgrade()
        except KafkaError as error:
            return refuse(request, error.code, error.message)
        return response

    async def create_partitions(
        self, context: RequestContext, request: CreatePartitionsRequest
    ) -> CreatePartitionsResponse:
        permitted = context.permitted(Operation.ALTER, Resource.TOPIC, [topic.name for topic in request.topics])
        refused = [topic for topic in request.topics if topic.name not in permitted]
        request.topics = [topic for topic in request.topics if topic.name in permitted]
        response: CreatePartitionsResponse = await self.handle(context, request)
        code, text = _REFUSED[Resource.TOPIC]
        result = CreatePartitionsResponse.CreatePartitionsTopicResult
        response.results += [result(name=topic.name, error_code=code, error_message=text) for topic in refused]
        return response

    async def alter_configs(self, context: RequestContext, request: Any) -> Any:
        """Handle AlterConfigs or IncrementalAlterConfigs, checking the permission for each resource."""
        resources, refused = [], []
        for resource in request.resources:
            kind, name = _protected(resource.resource_type, resource.resource_name)
            if name is None:
                allowed = context.may(Operation.ALTER_CONFIGS, kind)
            else:
                allowed = context.may(Operation.ALTER_CONFIGS, kind, name)
            if allowed:
                resources.append(resource)
            else:
                refused.append((resource, _REFUSED[kind]))
        request.resources = resources
        response = await self.handle(context, request)
        for resource, (code, text) in refused:
            one = type(request)(resources=[resource])
            response.responses += refuse(one, code, text).responses
        return response


def _protected(resource_type: int, name: str) -> tuple[Resource, str | None]:
    if resource_type == TOPIC_CONFIG:
        return Resource.TOPIC, name
    return (Resource.GROUP, name) if resource_type == GROUP_CONFIG else (Resource.CLUSTER, None)

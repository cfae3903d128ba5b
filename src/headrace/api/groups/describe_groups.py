"""ListGroups 0–5 and DescribeGroups 0–6, which read the coordinator's state, and DeleteGroups 0–2, which it decides on."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headrace.api.groups.group_decisions import coordinator_request
from headrace.api.permissions import on_groups
from headrace.base.errors import ErrorCode, KafkaError
from headrace.broker.shard_runner import Coordination
from headrace.coordinators.group.groups import describe_group, list_groups
from headrace.coordinators.group.shard import GroupShard
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from headrace.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from headrace.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from headrace.security.resources import Operation, Resource
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service

Deleted = DeleteGroupsResponse.DeletableGroupResult
Described = DescribeGroupsResponse.DescribedGroup


class DescribeGroupsApi:
    def __init__(self, groups: Coordination[GroupShard]) -> None:
        self._groups = groups

    def services(self) -> Sequence[Service]:
        return [
            Service(ApiKey.LIST_GROUPS, (0, 5), self.list, on_groups(Operation.DESCRIBE)),
            Service(ApiKey.DESCRIBE_GROUPS, (0, 6), self.describe, on_groups(Operation.DESCRIBE)),
            Service(ApiKey.DELETE_GROUPS, (0, 2), self.delete, on_groups(Operation.DELETE)),
        ]

    def list(self, context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
        """List all groups if the client may describe the cluster, otherwise those that it may describe.

        They are sorted by name; Kafka returns them in the order of its hash tables.
        """
        response = ListGroupsResponse()
        everything = context.may(Operation.DESCRIBE, Resource.CLUSTER, quietly=True)
        try:
            for shard in self._groups.machines():
                response.groups += list_groups(shard, request.states_filter, request.types_filter)
        except KafkaError as error:
            return ListGroupsResponse(error_code=error.code)
        if not everything:
            names = [group.group_id for group in response.groups]
            permitted = context.permitted(Operation.DESCRIBE, Resource.GROUP, names, quietly=True)
            response.groups = [group for group in response.groups if group.group_id in permitted]
        response.groups.sort(key=lambda group: group.group_id)
        return response

    def describe(self, context: RequestContext, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
        """Describe groups. Refused ones come first, as in Kafka; the others keep the order of the request."""
        permitted = context.permitted(Operation.DESCRIBE, Resource.GROUP, request.groups)
        response = DescribeGroupsResponse()
        for group_id in sorted(request.groups, key=permitted.__contains__):
            described = self._describe(context, group_id, group_id in permitted)
            if request.include_authorized_operations and not described.error_code:
                described.authorized_operations = context.operations(Resource.GROUP, group_id)
            response.groups.append(described)
        return response

    def _describe(self, context: RequestContext, group_id: str, permitted: bool) -> Described:
        try:
            if not permitted:
                raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
            return describe_group(self._groups.machine_of(group_id), group_id, context.api_version)
        except KafkaError as error:
            return Described(group_id=group_id, error_code=error.code)

    async def delete(self, context: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
        permitted = context.permitted(Operation.DELETE, Resource.GROUP, request.groups_names)
        results = await asyncio.gather(
            *(self._delete(context, group_id, group_id in permitted) for group_id in request.groups_names)
        )
        return DeleteGroupsResponse(results=results)

    async def _delete(self, context: RequestContext, group_id: str, permitted: bool) -> Deleted:
        try:
            if not permitted:
                raise KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED)
            await self._groups.decide(
                group_id, coordinator_request(context, DeleteGroupsRequest(groups_names=[group_id]))
            )
        except KafkaError as error:
            return Deleted(group_id=group_id, error_code=error.code)
        return Deleted(group_id=group_id)

"""Requests of classic groups and of groups in general.

JoinGroup 0–9, SyncGroup 0–5, Heartbeat 0–4, LeaveGroup 0–5 and DeleteGroups 0–2 are decided by the group's coordinator. ListGroups 0–5
and DescribeGroups 0–6 read its state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from headrace.api.permissions import on_groups
from headrace.base.errors import ErrorCode, KafkaError
from headrace.broker.shard_runner import Coordination
from headrace.coordinators.group.classic.joining import MemberRefused
from headrace.coordinators.group.classic.membership import heartbeat_at_a_glance
from headrace.coordinators.group.groups import describe_group, list_groups
from headrace.coordinators.group.request import Asked
from headrace.coordinators.group.shard import GroupShard
from headrace.protocol.apis import ApiKey
from headrace.protocol.declare import Struct
from headrace.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from headrace.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from headrace.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from headrace.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from headrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from headrace.security.resources import Operation, Resource
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service

NULL_PROTOCOL_VERSION_MIN = 7  # JoinGroup version from which the protocol name may be null

Response = TypeVar("Response", bound=Struct)
Deleted = DeleteGroupsResponse.DeletableGroupResult
Described = DescribeGroupsResponse.DescribedGroup


def coordinator_request(context: RequestContext, request: Struct) -> Asked:
    return Asked(request, context.api_version, context.client_id or "", f"/{context.peer.address}")


def request_decision(
    groups: Coordination[GroupShard], group_id: str, request: Asked, refuse: Callable[[KafkaError], Response]
) -> Response | Awaitable[Response]:
    """Return the response, or an awaitable if it is not decided yet.

    Nearly all are decided immediately, and a task for each would cost as much as deciding it.
    """
    try:
        future = groups.decide(group_id, request)
        if future.done():
            response: Response = future.result()
            return response
    except KafkaError as error:
        return refuse(error)
    return _later(future, refuse)


async def _later(future: asyncio.Future[Response], refuse: Callable[[KafkaError], Response]) -> Response:
    try:
        return await future
    except KafkaError as error:
        return refuse(error)


def _refused_heartbeat(error: KafkaError) -> HeartbeatResponse:
    # While the group is loading, no member is late.
    loading = error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return HeartbeatResponse(error_code=ErrorCode.NONE if loading else error.code)


class GroupsApi:
    def __init__(self, groups: Coordination[GroupShard]) -> None:
        self._groups = groups

    def services(self) -> Sequence[Service]:
        return [
            Service(ApiKey.JOIN_GROUP, (0, 9), self.join, on_groups(Operation.READ)),
            Service(ApiKey.SYNC_GROUP, (0, 5), self.sync, on_groups(Operation.READ)),
            Service(ApiKey.HEARTBEAT, (0, 4), self.heartbeat, on_groups(Operation.READ)),
            Service(ApiKey.LEAVE_GROUP, (0, 5), self.leave, on_groups(Operation.READ)),
            Service(ApiKey.LIST_GROUPS, (0, 5), self.list, on_groups(Operation.DESCRIBE)),
            Service(ApiKey.DESCRIBE_GROUPS, (0, 6), self.describe, on_groups(Operation.DESCRIBE)),
            Service(ApiKey.DELETE_GROUPS, (0, 2), self.delete, on_groups(Operation.DELETE)),
        ]

    def _decide(
        self, context: RequestContext, group_id: str, request: Struct, refuse: Callable[[KafkaError], Response]
    ) -> Response | Awaitable[Response]:
        """Authorize a member's request and return the coordinator's response, or an awaitable of it."""
        if not context.may(Operation.READ, Resource.GROUP, group_id):
            return refuse(KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED))
        if not group_id:
            return refuse(KafkaError(ErrorCode.INVALID_GROUP_ID))
        return request_decision(self._groups, group_id, coordinator_request(context, request), refuse)

    async def join(self, context: RequestContext, request: JoinGroupRequest) -> JoinGroupResponse:
        def refused(error: KafkaError) -> JoinGroupResponse:
            has_member_id = isinstance(error, MemberRefused) or error.code is ErrorCode.INVALID_GROUP_ID
            return JoinGroupResponse(error_code=error.code, member_id=request.member_id if has_member_id else "")

        response = self._decide(context, request.group_id, request, refused)
        if not isinstance(response, JoinGroupResponse):
            response = await response
        if response.error_code:
            response.protocol_name = None if context.api_version >= NULL_PROTOCOL_VERSION_MIN else ""
        return response

    def sync(
        self, context: RequestContext, request: SyncGroupRequest
    ) -> SyncGroupResponse | Awaitable[SyncGroupResponse]:
        return self._decide(context, request.group_id, request, lambda error: SyncGroupResponse(error_code=error.code))

    def heartbeat(
        self, context: RequestContext, request: HeartbeatRequest
    ) -> HeartbeatResponse | Awaitable[HeartbeatResponse]:
        if context.may(Operation.READ, Resource.GROUP, request.group_id):
            response = self._groups.glance(request.group_id, heartbeat_at_a_glance, request)
            if response is not None:
                return response
        return self._decide(context, request.group_id, request, _refused_heartbeat)

    def leave(
        self, context: RequestContext, request: LeaveGroupRequest
    ) -> LeaveGroupResponse | Awaitable[LeaveGroupResponse]:
        return self._decide(context, request.group_id, request, lambda error: LeaveGroupResponse(error_code=error.code))

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

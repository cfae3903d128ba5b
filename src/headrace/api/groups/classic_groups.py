"""Requests of classic groups and of groups in general.

JoinGroup 0–9, SyncGroup 0–5, Heartbeat 0–4, LeaveGroup 0–5 and DeleteGroups 0–2 are decided by the group's coordinator. ListGroups 0–5
and DescribeGroups 0–6 read its state.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from headrace.base.errors import ErrorCode, KafkaError
from headrace.broker.shard_runner import Coordination
from headrace.coordinators.group.classic.joining import MemberRefused
from headrace.coordinators.group.classic.membership import heartbeat_without_decision
from headrace.coordinators.group.groups import describe_group, list_groups
from headrace.coordinators.group.request import CoordinatorRequest
from headrace.coordinators.group.shard import GroupShard
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

NULL_PROTOCOL_VERSION_MIN = 7  # JoinGroup version from which the protocol name may be null

Answer = TypeVar("Answer", bound=Struct)
Deleted = DeleteGroupsResponse.DeletableGroupResult
Described = DescribeGroupsResponse.DescribedGroup


def asked_by(context: RequestContext, request: Struct) -> CoordinatorRequest:
    return CoordinatorRequest(request, context.api_version, context.client_id or "", f"/{context.peer.address}")


def answer_of(
    groups: Coordination[GroupShard], group_id: str, asked: CoordinatorRequest, refuse: Callable[[KafkaError], Answer]
) -> Answer | Awaitable[Answer]:
    """Return the response, or an awaitable if it is not decided yet.

    Nearly all are decided immediately, and a task for each would cost as much as deciding it.
    """
    try:
        future = groups.decide(group_id, asked)
        if future.done():
            answer: Answer = future.result()
            return answer
    except KafkaError as error:
        return refuse(error)
    return _later(future, refuse)


async def _later(future: asyncio.Future[Answer], refuse: Callable[[KafkaError], Answer]) -> Answer:
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

    def _answer(
        self, context: RequestContext, group_id: str, request: Struct, refuse: Callable[[KafkaError], Answer]
    ) -> Answer | Awaitable[Answer]:
        """Authorize a member's request and return the coordinator's response, or an awaitable of it."""
        if not context.may(Operation.READ, Resource.GROUP, group_id):
            return refuse(KafkaError(ErrorCode.GROUP_AUTHORIZATION_FAILED))
        if not group_id:
            return refuse(KafkaError(ErrorCode.INVALID_GROUP_ID))
        return answer_of(self._groups, group_id, asked_by(context, request), refuse)

    async def join(self, context: RequestContext, request: JoinGroupRequest) -> JoinGroupResponse:
        def refused(error: KafkaError) -> JoinGroupResponse:
            is_told = isinstance(error, MemberRefused) or error.code is ErrorCode.INVALID_GROUP_ID
            return JoinGroupResponse(error_code=error.code, member_id=request.member_id if is_told else "")

        answer = self._answer(context, request.group_id, request, refused)
        if not isinstance(answer, JoinGroupResponse):
            answer = await answer
        if answer.error_code:
            answer.protocol_name = None if context.api_version >= NULL_PROTOCOL_VERSION_MIN else ""
        return answer

    def sync(
        self, context: RequestContext, request: SyncGroupRequest
    ) -> SyncGroupResponse | Awaitable[SyncGroupResponse]:
        return self._answer(context, request.group_id, request, lambda error: SyncGroupResponse(error_code=error.code))

    def heartbeat(
        self, context: RequestContext, request: HeartbeatRequest
    ) -> HeartbeatResponse | Awaitable[HeartbeatResponse]:
        if context.may(Operation.READ, Resource.GROUP, request.group_id):
            answer = self._groups.without_decision(request.group_id, heartbeat_without_decision, request)
            if answer is not None:
                return answer
        return self._answer(context, request.group_id, request, _refused_heartbeat)

    def leave(
        self, context: RequestContext, request: LeaveGroupRequest
    ) -> LeaveGroupResponse | Awaitable[LeaveGroupResponse]:
        return self._answer(context, request.group_id, request, lambda error: LeaveGroupResponse(error_code=error.code))

    def list(self, context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
        """List all groups if the client may describe the cluster, otherwise those that it may describe.

        They are sorted by name; Kafka returns them in the order of its hash tables.
        """
        answer = ListGroupsResponse()
        everything = context.may(Operation.DESCRIBE, Resource.CLUSTER, quietly=True)
        try:
            for shard in self._groups.machines():
                answer.groups += list_groups(shard, request.states_filter, request.types_filter)
        except KafkaError as error:
            return ListGroupsResponse(error_code=error.code)
        if not everything:
            names = [group.group_id for group in answer.groups]
            permitted = context.permitted(Operation.DESCRIBE, Resource.GROUP, names, quietly=True)
            answer.groups = [group for group in answer.groups if group.group_id in permitted]
        answer.groups.sort(key=lambda group: group.group_id)
        return answer

    def describe(self, context: RequestContext, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
        """Describe groups. Refused ones come first, as in Kafka; the others keep the order of the request."""
        permitted = context.permitted(Operation.DESCRIBE, Resource.GROUP, request.groups)
        answer = DescribeGroupsResponse()
        for group_id in sorted(request.groups, key=permitted.__contains__):
            described = self._describe(context, group_id, group_id in permitted)
            if request.include_authorized_operations and not described.error_code:
                described.authorized_operations = context.operations(Resource.GROUP, group_id)
            answer.groups.append(described)
        return answer

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
            await self._groups.decide(group_id, asked_by(context, DeleteGroupsRequest(groups_names=[group_id])))
        except KafkaError as error:
            return Deleted(group_id=group_id, error_code=error.code)
        return Deleted(group_id=group_id)

"""JoinGroup 0–9, SyncGroup 0–5, Heartbeat 0–4 and LeaveGroup 0–5: members of classic groups.

The group's coordinator decides on them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from headrace.api.groups.group_decisions import Response, coordinator_request, request_decision
from headrace.api.permissions import on_groups
from headrace.base.errors import ErrorCode, KafkaError
from headrace.broker.shard_runner import Coordination
from headrace.coordinators.group.classic.joining import MemberRefused
from headrace.coordinators.group.classic.membership import heartbeat_without_decision
from headrace.coordinators.group.shard import GroupShard
from headrace.protocol.apis import ApiKey
from headrace.protocol.declare import Struct
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from headrace.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from headrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse
from headrace.security.resources import Operation, Resource
from headrace.server.context import RequestContext
from headrace.server.dispatch import Service

NULL_PROTOCOL_VERSION_MIN = 7  # JoinGroup version from which the protocol name may be null


def _refused_heartbeat(error: KafkaError) -> HeartbeatResponse:
    # While the group is loading, no member is late.
    loading = error.code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    return HeartbeatResponse(error_code=ErrorCode.NONE if loading else error.code)


class ClassicGroupsApi:
    def __init__(self, groups: Coordination[GroupShard]) -> None:
        self._groups = groups

    def services(self) -> list[Service]:
        return [
            Service(ApiKey.JOIN_GROUP, (0, 9), self.join, on_groups(Operation.READ)),
            Service(ApiKey.SYNC_GROUP, (0, 5), self.sync, on_groups(Operation.READ)),
            Service(ApiKey.HEARTBEAT, (0, 4), self.heartbeat, on_groups(Operation.READ)),
            Service(ApiKey.LEAVE_GROUP, (0, 5), self.leave, on_groups(Operation.READ)),
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
            response = self._groups.without_decision(request.group_id, heartbeat_without_decision, request)
            if response is not None:
                return response
        return self._decide(context, request.group_id, request, _refused_heartbeat)

    def leave(
        self, context: RequestContext, request: LeaveGroupRequest
    ) -> LeaveGroupResponse | Awaitable[LeaveGroupResponse]:
        return self._decide(context, request.group_id, request, lambda error: LeaveGroupResponse(error_code=error.code))

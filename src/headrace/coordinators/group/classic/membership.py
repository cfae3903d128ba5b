"""SyncGroup 0–5, Heartbeat 0–4 and LeaveGroup 0–5 to a classic group."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from headrace.base.errors import ErrorCode, KafkaError
from headrace.coordinators.group.classic.group import ClassicGroup
from headrace.coordinators.group.classic.rebalance import (
    SYNC,
    assign,
    assignment_response,
    dismiss,
    prepare_or_complete,
    refuse_parked,
)
from headrace.coordinators.group.classic.state import SESSION, prolong
from headrace.coordinators.group.classic.states import ON_HEARTBEAT, ON_SYNC, State
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from headrace.protocol.messages.sync_group import SyncGroupRequest

if TYPE_CHECKING:
    from headrace.coordinators.group.request import CoordinatorRequest
    from headrace.coordinators.group.shard import GroupShard, Tx
    from headrace.statemachine.machine import Arm

MANY_MEMBERS_VERSION_MIN = 3  # version of LeaveGroup
PROTOCOL_NAMED_VERSION_MIN = 5  # version of SyncGroup (KIP-559)

Identity = LeaveGroupRequest.MemberIdentity
MemberResult = LeaveGroupResponse.MemberResponse


def sync(shard: GroupShard, received: CoordinatorRequest, now_ms: int, tx: Tx) -> None:
    request = received.request
    assert isinstance(request, SyncGroupRequest)
    if received.version >= PROTOCOL_NAMED_VERSION_MIN and None in (request.protocol_type, request.protocol_name):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if shard.consumers.has(request.group_id) and not shard.consumers.is_empty(request.group_id):
        shard.consumers.classic_sync(shard, received, now_ms, tx)
        return
    group = shard.classic.draft(request.group_id)
    if group is None or group.state is State.EMPTY:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    group.check_member(request.member_id, request.group_instance_id)
    if request.generation_id != group.generation:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    if _differs(request.protocol_type, group.protocol_type) or _differs(request.protocol_name, group.protocol):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if (code := ON_SYNC.get(group.state)) is not None:
        raise KafkaError(code)
    member = group.members[request.member_id]
    group.unsynced.pop(member.id, None)
    if not group.unsynced:
        tx.cancel((SYNC, group.id))
    if group.state is State.STABLE:
        tx.reply(tx.ticket, assignment_response(group, member))
    else:
        # The client no longer waits for a request that it sent before.
        refuse_parked(member, ErrorCode.REBALANCE_IN_PROGRESS, member.id, tx)
        group.update(replace(member, joining=None, syncing=tx.ticket))
        if group.leader == member.id:
            assign(group, {one.member_id: one.assignment for one in request.assignments}, now_ms, tx)
    shard.classic.keep(group)


def _differs(received: str | None, held: str | None) -> bool:
    return received is not None and held is not None and received != held


def heartbeat(shard: GroupShard, received: CoordinatorRequest, now_ms: int, tx: Tx) -> None:
    request = received.request
    assert isinstance(request, HeartbeatRequest)
    if shard.consumers.has(request.group_id):
        shard.consumers.classic_heartbeat(shard, received, now_ms, tx)
        return
    group = shard.classic.groups.get(request.group_id)
    if group is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    group.check_member(request.member_id, request.group_instance_id)
    if request.generation_id != group.generation:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    prolong(group, group.members[request.member_id], now_ms, tx)
    tx.reply(tx.ticket, HeartbeatResponse(error_code=ON_HEARTBEAT.get(group.state, ErrorCode.NONE)))


def heartbeat_without_decision(
    shard: GroupShard, request: HeartbeatRequest, now_ms: int, arm: Arm
) -> HeartbeatResponse | None:
    """Serve the heartbeat of a dynamic member of a stable group, the usual case; return None for any other."""
    group = shard.classic.groups.get(request.group_id)
    if group is None or group.state is not State.STABLE or request.generation_id != group.generation:
        return None
    member = group.members.get(request.member_id)
    if member is None or request.group_instance_id is not None or shard.consumers.has(request.group_id):
        return None
    arm((SESSION, group.id, member.id), now_ms + member.session_timeout_ms)
    return HeartbeatResponse()


def leave(shard: GroupShard, received: CoordinatorRequest, now_ms: int, tx: Tx) -> None:
    """Remove members by id, or static members by instance id alone, as an administrator does."""
    request = received.request
    assert isinstance(request, LeaveGroupRequest)
    if shard.consumers.has(request.group_id):
        shard.consumers.classic_leave(shard, received, now_ms, tx)
        return
    leaving = leaving_members(received)
    group = shard.classic.draft(request.group_id)
    if group is None:
        tx.reply(tx.ticket, leave_response(received, [ErrorCode.UNKNOWN_MEMBER_ID] * len(leaving)))
        return
    codes = [_leave(group, one, tx) for one in leaving]
    if ErrorCode.NONE in codes:
        if group.state is not State.EMPTY:  # an empty group may have pending ids that leave
            prepare_or_complete(shard, group, now_ms, tx)
        shard.classic.keep(group)
    tx.reply(tx.ticket, leave_response(received, codes))


def _leave(group: ClassicGroup, leaving: Identity, tx: Tx) -> ErrorCode:
    member_id, instance_id = leaving.member_id, leaving.group_instance_id
    if not member_id:
        member_id = group.instances.get(instance_id or "", "")
    elif member_id in group.pending:
        group.remove(member_id)
        tx.cancel((SESSION, group.id, member_id))
        return ErrorCode.NONE
    try:
        group.check_member(member_id, instance_id)
    except KafkaError as error:
        return error.code
    dismiss(group, group.members[member_id], tx)
    return ErrorCode.NONE


def leaving_members(received: CoordinatorRequest) -> list[Identity]:
    request = received.request
    assert isinstance(request, LeaveGroupRequest)
    return request.members if received.version >= MANY_MEMBERS_VERSION_MIN else [Identity(member_id=request.member_id)]


def leave_response(received: CoordinatorRequest, codes: list[ErrorCode]) -> LeaveGroupResponse:
    """Return the response with a code for each leaving member, in their order. Before version 3 there is only one."""
    if received.version < MANY_MEMBERS_VERSION_MIN:
        return LeaveGroupResponse(error_code=codes[0])
    return LeaveGroupResponse(
        members=[
            MemberResult(member_id=one.member_id, group_instance_id=one.group_instance_id, error_code=code)
            for one, code in zip(leaving_members(received), codes, strict=True)
        ]
    )

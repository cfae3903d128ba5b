"""JoinGroup 0–9 to a classic group: new and returning members, static members with a new id (KIP-345, 394, 814)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import new_uuid
from headrace.coordinators.group.classic.group import ClassicGroup, Member, protocols_of
from headrace.coordinators.group.classic.rebalance import (
    dismiss,
    generation_response,
    prepare,
    prepare_or_complete,
    refuse_parked,
)
from headrace.coordinators.group.classic.state import SESSION, new_group_record, prolong, record_of
from headrace.coordinators.group.classic.states import State
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse

if TYPE_CHECKING:
    from headrace.coordinators.group.request import CoordinatorRequest
    from headrace.coordinators.group.shard import GroupShard, Tx

MEMBER_ID_REQUIRED_VERSION_MIN = 4
SKIP_ASSIGNMENT_VERSION_MIN = 9
# Removes a new member that disconnected while its join was parked; one that is still connected joins again.
NEW_MEMBER_TIMEOUT_MS = 300_000
PENDING_MAX = 10_000  # unused member ids given out for one group


class MemberRefused(KafkaError):
    """A refusal whose response repeats the member id of the request; Kafka omits it from all others."""


def join(shard: GroupShard, received: CoordinatorRequest, now_ms: int, tx: Tx) -> None:
    request = received.request
    assert isinstance(request, JoinGroupRequest)
    settings = shard.settings
    if not settings.group_min_session_timeout_ms <= request.session_timeout_ms <= settings.group_max_session_timeout_ms:
        raise MemberRefused(ErrorCode.INVALID_SESSION_TIMEOUT)
    if shard.consumers.has(request.group_id) and not shard.consumers.is_empty(request.group_id):
        shard.consumers.classic_join(shard, received, now_ms, tx)
        return
    try:
        _join_classic(shard, received, request, now_ms, tx)
    except KafkaError as error:
        raise MemberRefused(error.code, error.message) from error


def _join_classic(
    shard: GroupShard, received: CoordinatorRequest, request: JoinGroupRequest, now_ms: int, tx: Tx
) -> None:
    if shard.consumers.has(request.group_id):
        shard.consumers.delete(request.group_id, tx)
    group = shard.classic.draft(request.group_id)
    if group is None:
        if request.member_id:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        group = ClassicGroup(request.group_id, since_ms=now_ms)
        _join_new(shard, group, received, request, now_ms, tx)
        if not shard.offsets.has(request.group_id):
            tx.emit(new_group_record(group))
    elif not _has_capacity(group, request.member_id, shard.settings.group_max_size):
        member = group.members.get(request.member_id)
        if member is not None:
            dismiss(group, member, tx)
        tx.reply(tx.ticket, JoinGroupResponse(error_code=ErrorCode.GROUP_MAX_SIZE_REACHED))
    elif request.member_id:
        _rejoin(shard, group, received, request, now_ms, tx)
    else:
        _join_new(shard, group, received, request, now_ms, tx)
    shard.classic.keep(group)


def _has_capacity(group: ClassicGroup, member_id: str, size_max: int) -> bool:
    member = group.members.get(member_id)
    if group.state is State.EMPTY:
        return True
    if group.state is State.PREPARING:
        # Only members that have rejoined count, so that a group above a lowered limit shrinks with the next rebalance.
        return (member is not None and member.joining is not None) or group.joined < size_max
    return member is not None or len(group.members) < size_max


def _check_protocols(group: ClassicGroup, request: JoinGroupRequest) -> None:
    if not group.knows(request.protocol_type, [protocol.name for protocol in request.protocols]):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def _join_new(
    shard: GroupShard, group: ClassicGroup, received: CoordinatorRequest, request: JoinGroupRequest, now_ms: int, tx: Tx
) -> None:
    """Handle a join without a member id."""
    _check_protocols(group, request)
    instance_id = request.group_instance_id
    member_id = _new_member_id(shard, received.client_id if instance_id is None else instance_id)
    if instance_id is not None and instance_id in group.instances:
        _replace_static(shard, group, received, request, member_id, now_ms, tx)
    elif instance_id is None and received.version >= MEMBER_ID_REQUIRED_VERSION_MIN:
        if len(group.pending) >= PENDING_MAX:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED,
                f"{PENDING_MAX} members of the group have an id and have not joined yet",
            )
        group.pending[member_id] = None
        tx.arm((SESSION, group.id, member_id), now_ms + request.session_timeout_ms)
        tx.reply(tx.ticket, JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id))
    else:
        _add(shard, group, received, request, member_id, now_ms, tx)


def _new_member_id(shard: GroupShard, prefix: str) -> str:
    """Return a member id that ends with a new UUID, as Java prints it."""
    digits = new_uuid(shard.random).hex()
    return "-".join((prefix, digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _add(
    shard: GroupShard,
    group: ClassicGroup,
    received: CoordinatorRequest,
    request: JoinGroupRequest,
    member_id: str,
    now_ms: int,
    tx: Tx,
) -> None:
    member = Member(
        member_id,
        request.group_instance_id,
        received.client_id,
        received.client_host,
        _rebalance_timeout(received, request),
        request.session_timeout_ms,
        protocols_of(request.protocols),
        joining=tx.ticket,
        is_new=True,
    )
    group.newcomers = group.newcomers or group.is_initial
    group.add(member, request.protocol_type)
    prolong(group, member, now_ms, tx, NEW_MEMBER_TIMEOUT_MS)
    prepare_or_complete(shard, group, now_ms, tx)


def _rebalance_timeout(received: CoordinatorRequest, request: JoinGroupRequest) -> int:
    return request.session_timeout_ms if received.version == 0 else request.rebalance_timeout_ms


def _rejoin(
    shard: GroupShard, group: ClassicGroup, received: CoordinatorRequest, request: JoinGroupRequest, now_ms: int, tx: Tx
) -> None:
    """Handle a join with a member id: one that was just given out, or that of a member."""
    _check_protocols(group, request)
    if request.member_id in group.pending:
        if request.group_instance_id is not None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)  # only dynamic members are given an id to join with
        _add(shard, group, received, request, request.member_id, now_ms, tx)
        return
    group.check_member(request.member_id, request.group_instance_id)
    member = group.members[request.member_id]
    unchanged = member.protocols == protocols_of(request.protocols)
    if group.state is State.EMPTY:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    if unchanged and group.state is State.COMPLETING:
        # The earlier response may have been lost.
        tx.reply(tx.ticket, generation_response(group, member.id))
    elif unchanged and group.state is State.STABLE and group.leader != member.id:
        tx.reply(tx.ticket, generation_response(group, member.id))
    else:
        # A leader rejoins to start a rebalance: topics may have changed.
        _update(group, member, received, request, tx)
        prepare_or_complete(shard, group, now_ms, tx)


def _update(
    group: ClassicGroup, member: Member, received: CoordinatorRequest, request: JoinGroupRequest, tx: Tx
) -> Member:
    """Update the member and park its join, after refusing parked requests that the client no longer waits for."""
    refuse_parked(member, ErrorCode.REBALANCE_IN_PROGRESS, member.id, tx)
    updated = replace(
        member,
        protocols=protocols_of(request.protocols),
        rebalance_timeout_ms=_rebalance_timeout(received, request),
        session_timeout_ms=request.session_timeout_ms,
        joining=tx.ticket,
        syncing=None,
    )
    group.update(updated)
    return updated


def _replace_static(
    shard: GroupShard,
    group: ClassicGroup,
    received: CoordinatorRequest,
    request: JoinGroupRequest,
    new_id: str,
    now_ms: int,
    tx: Tx,
) -> None:
    """Give a static member that rejoined without its id a new one, and fence the old id.

    A stable group continues without a rebalance, unless another protocol would be chosen now.
    """
    assert request.group_instance_id is not None
    old_leader, old_id = group.leader, group.instances[request.group_instance_id]
    old = group.members[old_id]
    refuse_parked(old, ErrorCode.FENCED_INSTANCE_ID, old_id, tx)
    group.update(replace(old, joining=None, syncing=None))
    tx.cancel((SESSION, group.id, old_id))
    member = _update(group, group.rename(old_id, new_id), received, request, tx)
    prolong(group, member, now_ms, tx)
    if group.state is State.COMPLETING:
        # The leader may already be assigning partitions to the old id.
        prepare(shard, group, now_ms, tx)
    elif group.state is not State.STABLE or group.select_protocol() != group.protocol:
        prepare_or_complete(shard, group, now_ms, tx)
    else:
        group.update(replace(member, joining=None))
        tx.emit(record_of(group))
        response = generation_response(group, new_id)
        if received.version >= SKIP_ASSIGNMENT_VERSION_MIN:
            response.skip_assignment = group.leader == new_id
        else:
            # An older client cannot skip the assignment: it gets the old leader's id, so that it does not act as leader.
            response.leader, response.members = old_leader or "", []
        tx.reply(tx.ticket, response)

"""The rebalance of a classic group: the join phase, the start of a generation, the leader's assignment, and timers.

Except for the timers, functions work on a draft of the group, which the caller stores.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from headrace.base.errors import ErrorCode
from headrace.coordinators.group.classic.group import ClassicGroup, Member
from headrace.coordinators.group.classic.state import SESSION, prolong, record_of
from headrace.coordinators.group.classic.states import Event, State
from headrace.protocol.messages.join_group import JoinGroupResponse
from headrace.protocol.messages.sync_group import SyncGroupResponse

if TYPE_CHECKING:
    from headrace.coordinators.group.shard import GroupShard, Tx

JOIN, SYNC = "classic-join", "classic-sync"
UNKNOWN_MEMBER = ""


def prepare_or_complete(shard: GroupShard, group: ClassicGroup, now_ms: int, tx: Tx) -> None:
    """Start a rebalance, or complete its join phase, after a member joined, changed or left."""
    if group.can_rebalance:
        prepare(shard, group, now_ms, tx)
    elif group.state is State.PREPARING and group.all_joined and not group.is_initial:
        complete_join(group, now_ms, tx)


def prepare(shard: GroupShard, group: ClassicGroup, now_ms: int, tx: Tx) -> None:
    if group.state is State.COMPLETING:
        _withdraw_assignments(group, now_ms, tx)
    group.unsynced.clear()
    tx.cancel((SYNC, group.id))
    if group.state is not State.EMPTY:
        group.move(Event.REBALANCE, now_ms)
        if group.all_joined:
            complete_join(group, now_ms, tx)
        else:
            tx.arm((JOIN, group.id), now_ms + group.rebalance_timeout_ms)
        return
    delay_ms = shard.settings.group_initial_rebalance_delay_ms
    group.initial_remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
    group.newcomers = False
    group.move(Event.REBALANCE, now_ms)
    tx.arm((JOIN, group.id), now_ms + delay_ms)


def complete_join(group: ClassicGroup, now_ms: int, tx: Tx) -> None:
    """End the join phase and begin a generation.

    Dynamic members that did not join are removed; static members stay until their sessions end.
    """
    tx.cancel((JOIN, group.id))
    for member in list(group.members.values()):
        if member.joining is None and member.instance_id is None:
            dismiss(group, member, tx)
    if not group.elect_leader() and group.members:
        # Only static members are left and none has joined: wait until their sessions end.
        tx.arm((JOIN, group.id), now_ms + group.rebalance_timeout_ms)
        return
    group.begin_generation(now_ms)
    if group.state is State.EMPTY:
        tx.emit(record_of(group))
        return
    for member in list(group.members.values()):
        if member.joining is not None:
            tx.reply(member.joining, generation_response(group, member.id))
        prolong(group, member, now_ms, tx)
        group.unsynced[member.id] = None
        group.update(replace(member, joining=None, is_new=False))
    tx.arm((SYNC, group.id), now_ms + group.rebalance_timeout_ms)


def generation_response(group: ClassicGroup, member_id: str) -> JoinGroupResponse:
    return JoinGroupResponse(
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol,
        leader=group.leader or "",
        member_id=member_id,
        members=roster(group) if member_id == group.leader else [],
    )


def roster(group: ClassicGroup) -> list[JoinGroupResponse.JoinGroupResponseMember]:
    """Return the members with their metadata, from which the leader computes the assignment."""
    return [
        JoinGroupResponse.JoinGroupResponseMember(
            member_id=member.id, group_instance_id=member.instance_id, metadata=member.metadata(group.protocol)
        )
        for member in group.members.values()
    ]


def assign(group: ClassicGroup, assignments: Mapping[str, bytes], now_ms: int, tx: Tx) -> None:
    """Emit the leader's assignment and reply to the members that wait for it.

    A member that the leader left out gets an empty assignment.
    """
    for member in list(group.members.values()):
        group.update(replace(member, assignment=assignments.get(member.id, b"")))
    tx.emit(record_of(group))
    for member in list(group.members.values()):
        if member.syncing is not None:
            tx.reply(member.syncing, assignment_response(group, member))
            prolong(group, member, now_ms, tx)
            group.update(replace(member, syncing=None))
    group.move(Event.ASSIGNED, now_ms)


def assignment_response(group: ClassicGroup, member: Member) -> SyncGroupResponse:
    return SyncGroupResponse(
        protocol_type=group.protocol_type, protocol_name=group.protocol, assignment=member.assignment
    )


def _withdraw_assignments(group: ClassicGroup, now_ms: int, tx: Tx) -> None:
    for member in list(group.members.values()):
        if member.syncing is not None:
            tx.reply(member.syncing, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
            prolong(group, member, now_ms, tx)
        group.update(replace(member, assignment=b"", syncing=None))


def refuse_parked(member: Member, code: ErrorCode, response_member_id: str, tx: Tx) -> None:
    if member.joining is not None:
        tx.reply(member.joining, JoinGroupResponse(error_code=code, member_id=response_member_id))
    if member.syncing is not None:
        tx.reply(member.syncing, SyncGroupResponse(error_code=code))


def dismiss(group: ClassicGroup, member: Member, tx: Tx) -> None:
    """Remove the member from the group; refuse its parked requests so that it joins as a new member."""
    refuse_parked(member, ErrorCode.UNKNOWN_MEMBER_ID, UNKNOWN_MEMBER, tx)
    tx.cancel((SESSION, group.id, member.id))
    group.remove(member.id)


# --- timers


def on_join_timer(shard: GroupShard, timer: tuple[str, str], now_ms: int, tx: Tx) -> None:
    group = shard.classic.draft(timer[1])
    if group is None or group.state is not State.PREPARING:
        return
    delay_ms = shard.settings.group_initial_rebalance_delay_ms
    if group.newcomers and group.initial_remaining_ms:
        group.newcomers = False
        tx.arm((JOIN, group.id), now_ms + min(delay_ms, group.initial_remaining_ms))
        group.initial_remaining_ms = max(group.initial_remaining_ms - delay_ms, 0)
    else:
        complete_join(group, now_ms, tx)
    shard.classic.keep(group)


def on_sync_timer(shard: GroupShard, timer: tuple[str, str], now_ms: int, tx: Tx) -> None:
    """Remove the members that received a generation but did not sync in time."""
    group = shard.classic.draft(timer[1])
    if group is None or group.state not in (State.COMPLETING, State.STABLE) or not group.unsynced:
        return
    for member_id in list(group.unsynced):
        dismiss(group, group.members[member_id], tx)
    prepare(shard, group, now_ms, tx)
    shard.classic.keep(group)


def on_session_timer(shard: GroupShard, timer: tuple[str, str, str], now_ms: int, tx: Tx) -> None:
    _, group_id, member_id = timer
    group = shard.classic.draft(group_id)
    if group is None:
        return
    member = group.members.get(member_id)
    if member is None:
        if member_id not in group.pending:
            return
        group.remove(member_id)
    elif not member.is_new and (member.joining is not None or member.syncing is not None):
        return  # a member with a parked request is connected; its session restarts with the response
    else:
        dismiss(group, member, tx)
    if group.state is State.PREPARING and group.all_joined:
        complete_join(group, now_ms, tx)
    elif member is not None and group.state in (State.COMPLETING, State.STABLE):
        prepare(shard, group, now_ms, tx)
    shard.classic.keep(group)

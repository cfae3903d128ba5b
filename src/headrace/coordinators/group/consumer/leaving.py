"""How members leave a consumer group: voluntarily, temporarily (static members), or by a timeout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from headrace.base.errors import ErrorCode, KafkaError
from headrace.coordinators.group.consumer.groups import ConsumerGroup
from headrace.coordinators.group.consumer.members import LEAVING_TO_RETURN, NOTHING, Member, MemberState
from headrace.coordinators.group.consumer.record_values import (
    current_record,
    group_record,
    member_tombstones,
    regex_tombstone,
)
from headrace.coordinators.group.consumer.timers import arm_rebalance, arm_session, cancel_all
from headrace.coordinators.group.migration import downgrade_without
from headrace.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)

if TYPE_CHECKING:
    from headrace.coordinators.group.shard import GroupShard, Tx

SESSIONS_TIMER = "consumer-sessions"
SESSIONS_PER_TURN = 500  # members per turn


def find_group(shard: GroupShard, group_id: str) -> ConsumerGroup:
    group = shard.consumers.groups.get(group_id)
    if group is None:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Consumer group {group_id} not found.")
    return group


def find_member(group: ConsumerGroup, member_id: str) -> Member:
    member = group.members.get(member_id)
    if member is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group.group_id}.")
    return member


def find_static(group: ConsumerGroup, instance_id: str, member_id: str) -> Member:
    """Return the member with this instance id. Raise KafkaError if there is none or its member id differs."""
    held = group.static.get(instance_id)
    if held is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Instance id {instance_id} is unknown.")
    if held != member_id:
        raise KafkaError(
            ErrorCode.FENCED_INSTANCE_ID,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {held}.",
        )
    return group.members[held]


def leave(shard: GroupShard, request: ConsumerGroupHeartbeatRequest, now_ms: int, tx: Tx) -> None:
    group = shard.consumers.groups.get(request.group_id)
    if group is None:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {request.group_id} not found.")
    if request.instance_id is None:
        member = find_member(group, request.member_id)
    else:
        member = find_static(group, request.instance_id, request.member_id)
    if request.instance_id is not None and request.member_epoch == LEAVING_TO_RETURN:
        # Its partitions stay reserved until its session ends; the member that replaces it may commit at any epoch.
        waiting = {topic: dict.fromkeys(partitions, 0) for topic, partitions in member.assigned.items()}
        gone = replace(member, epoch=LEAVING_TO_RETURN, assigned=waiting, revoking=NOTHING)
        tx.emit(current_record(group.group_id, gone))
    else:
        remove_members(shard, group, [member], now_ms, tx)
    tx.reply(tx.ticket, ConsumerGroupHeartbeatResponse(member_id=member.member_id, member_epoch=request.member_epoch))


def remove_members(shard: GroupShard, group: ConsumerGroup, members: list[Member], now_ms: int, tx: Tx) -> None:
    """Remove members, and bump the group's epoch so that others get their partitions, or downgrade the group."""
    if downgrade_without(shard, group, {member.member_id: member for member in members}, now_ms, tx):
        return
    for member in members:
        for record in member_tombstones(group.group_id, member.member_id):
            tx.emit(record)
        cancel_all(group.group_id, member.member_id, tx)
    for regex in dict.fromkeys(member.regex for member in members):
        if regex and regex not in group.regexes:
            tx.emit(regex_tombstone(group.group_id, regex))
    metadata_hash = shard.consumers.hashes.of_group(group.names(), shard.image())
    tx.emit(group_record(group.group_id, group.epochs.group + 1, metadata_hash))


# --- timers


def session_ended(shard: GroupShard, timer: tuple[str, str, str], now_ms: int, tx: Tx) -> None:
    _fence(shard, timer, now_ms, tx)


def rebalance_ended(shard: GroupShard, timer: tuple[str, str, str], now_ms: int, tx: Tx) -> None:
    member = _named(shard, timer)
    if member is not None and member.state is MemberState.UNREVOKED_PARTITIONS:
        _fence(shard, timer, now_ms, tx)


def classic_member_timed_out(shard: GroupShard, timer: tuple[str, str, str], now_ms: int, tx: Tx) -> None:
    """Remove a classic member that did not join or sync in time."""
    member = _named(shard, timer)
    if member is not None and member.classic is not None:
        _fence(shard, timer, now_ms, tx)


def _named(shard: GroupShard, timer: tuple[str, str, str]) -> Member | None:
    group = shard.consumers.groups.get(timer[1])
    return None if group is None else group.members.get(timer[2])


def _fence(shard: GroupShard, timer: tuple[str, str, str], now_ms: int, tx: Tx) -> None:
    member = _named(shard, timer)
    if member is not None:
        remove_members(shard, shard.consumers.groups[timer[1]], [member], now_ms, tx)


def start_sessions(shard: GroupShard, now_ms: int, tx: Tx) -> None:
    """Give each member a full session: no heartbeats arrived while the coordinator moved."""
    _start_sessions(shard, tuple(shard.consumers.group_ids()), now_ms, tx)


def start_more_sessions(shard: GroupShard, timer: tuple[str, tuple[str, ...]], now_ms: int, tx: Tx) -> None:
    _start_sessions(shard, timer[1], now_ms, tx)


def _start_sessions(shard: GroupShard, group_ids: tuple[str, ...], now_ms: int, tx: Tx) -> None:
    started = 0
    for position, group_id in enumerate(group_ids):
        if started >= SESSIONS_PER_TURN:
            tx.arm((SESSIONS_TIMER, group_ids[position:]), now_ms + 1)
            return
        group = shard.consumers.groups.get(group_id)
        for member in group.members.values() if group is not None else ():
            assert group is not None
            arm_session(shard, group, member, now_ms, tx)
            if member.state is MemberState.UNREVOKED_PARTITIONS:
                arm_rebalance(group, member, now_ms, tx)
            started += 1

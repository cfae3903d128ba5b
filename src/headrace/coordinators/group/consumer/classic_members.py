"""Classic members of a consumer group, while the group migrates from one protocol to the other (KIP-848).

Their generation is their epoch. Heartbeat returns REBALANCE_IN_PROGRESS when the member has partitions to revoke or to receive, JoinGroup
takes the next step towards the target, and SyncGroup returns the partitions that the member owns after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import new_uuid
from headrace.coordinators.group.classic.group import CONSUMER_TYPE, protocols_of
from headrace.coordinators.group.classic.membership import leave_response, leaving_members
from headrace.coordinators.group.consumer.groups import ConsumerGroup
from headrace.coordinators.group.consumer.heartbeat import check_size, reconcile, refresh_epoch, replace_static
from headrace.coordinators.group.consumer.leaving import find_member, find_static, remove_members
from headrace.coordinators.group.consumer.members import Member, MemberState, sorted_names
from headrace.coordinators.group.consumer.record_values import member_record, regex_tombstone
from headrace.coordinators.group.consumer.targets import assign_if_due
from headrace.coordinators.group.consumer.timers import JOIN_TIMER, SYNC_TIMER, arm_session
from headrace.coordinators.group.migration import (
    DISABLED,
    classic_metadata,
    downgrade,
    may_downgrade_with,
    read_subscription,
    write_assignment,
)
from headrace.coordinators.group.request import CoordinatorRequest
from headrace.metadata.image import Image
from headrace.protocol.errors import DecodeError
from headrace.protocol.messages.embedded import ConsumerProtocolSubscription
from headrace.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from headrace.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from headrace.protocol.messages.leave_group import LeaveGroupRequest
from headrace.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse

if TYPE_CHECKING:
    from headrace.base.ids import Uuid
    from headrace.coordinators.group.shard import GroupShard, Tx

MEMBER_ID_REQUIRED_VERSION_MIN = 4


def join(shard: GroupShard, received: CoordinatorRequest, now_ms: int, tx: Tx) -> None:
    request = received.request
    assert isinstance(request, JoinGroupRequest)
    group = shard.consumers.groups[request.group_id]
    _check_policy(shard, group)
    protocols = dict(protocols_of(request.protocols))
    member_id = request.member_id or _new_id(shard, request.group_instance_id or received.client_id)
    check_size(shard, group, member_id)
    _check_protocols(group, request.protocol_type, protocols)
    if _must_rejoin_with_id(received, request):
        tx.reply(tx.ticket, JoinGroupResponse(error_code=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id))
        return
    held = group.static.get(request.group_instance_id or "")
    downgrades = held is not None and may_downgrade_with(shard, group, group.members[held])
    before = _find(group, member_id, request, tx)
    subscription = _read_subscription(protocols)
    after = _joined(before, received, protocols, subscription)
    if after != group.members.get(member_id):
        tx.emit(member_record(group.group_id, after))
    if before.regex and before.regex not in group.regexes:
        tx.emit(regex_tombstone(group.group_id, before.regex))
    changed = after.names != before.names or bool(before.regex)
    generation = group.epochs.group
    refresh_epoch(shard, group, changed, tx)
    if not downgrades:
        assign_if_due(shard, group, now_ms, tx)
    if downgrades and group.epochs.assignment < group.epochs.group:
        member = group.members[member_id]  # the classic group will compute a new assignment
    else:
        owned = _owned(subscription, shard.image())
        member = reconcile(shard, group, member_id, owned, changed, now_ms, tx)
    _stop_awaiting_join(group, member_id, tx)
    if downgrades:
        downgrade(shard, group, generation, now_ms, tx)
    else:
        arm_session(shard, group, member, now_ms, tx)
        tx.arm((SYNC_TIMER, group.group_id, member_id), now_ms + request.rebalance_timeout_ms)
    tx.reply(
        tx.ticket,
        JoinGroupResponse(
            generation_id=member.epoch,
            protocol_type=CONSUMER_TYPE,
            protocol_name=next(iter(protocols)),
            member_id=member_id,
        ),
    )


def _must_rejoin_with_id(received: CoordinatorRequest, request: JoinGroupRequest) -> bool:
    """Return whether a new dynamic member gets only a member id, with which it has to join again (KIP-394)."""
    return (
        not request.member_id
        and request.group_instance_id is None
        and received.version >= MEMBER_ID_REQUIRED_VERSION_MIN
    )


def _read_subscription(protocols: dict[str, bytes]) -> ConsumerProtocolSubscription:
    try:
        return read_subscription(next(iter(protocols.values())))
    except DecodeError as error:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, str(error)) from error


def _joined(
    member: Member,
    received: CoordinatorRequest,
    protocols: dict[str, bytes],
    subscription: ConsumerProtocolSubscription,
) -> Member:
    """Return the member with the values of its JoinGroup request."""
    request = received.request
    assert isinstance(request, JoinGroupRequest)
    return replace(
        member,
        instance_id=request.group_instance_id or member.instance_id,
        rack_id=subscription.rack_id or member.rack_id,
        client_id=received.client_id,
        client_host=received.client_host,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        names=sorted_names(subscription.topics),
        regex="",
        classic=classic_metadata(request.session_timeout_ms, protocols),
    )


def _owned(subscription: ConsumerProtocolSubscription, image: Image) -> dict[Uuid, dict[int, None]]:
    """Return the partitions that the member reports as owned, of topics that exist."""
    return {
        topic.id: dict.fromkeys(one.partitions)
        for one in subscription.owned_partitions
        if (topic := image.topics.get(one.topic)) is not None
    }


def _check_policy(shard: GroupShard, group: ConsumerGroup) -> None:
    if shard.settings.group_consumer_migration_policy == DISABLED:
        raise KafkaError(
            ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
            f"The classic protocol cannot join consumer group {group.group_id}: group.consumer.migration.policy is disabled.",
        )


def _check_protocols(group: ConsumerGroup, protocol_type: str, protocols: dict[str, bytes]) -> None:
    classic = [member.classic for member in group.members.values() if member.classic is not None]
    known = [{protocol.name for protocol in metadata.supported_protocols} for metadata in classic]
    if protocol_type != CONSUMER_TYPE or not any(all(name in names for names in known) for name in protocols):
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)


def _new_id(shard: GroupShard, prefix: str) -> str:
    digits = new_uuid(shard.random).hex()
    return "-".join((prefix, digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _find(group: ConsumerGroup, member_id: str, request: JoinGroupRequest, tx: Tx) -> Member:
    instance_id = request.group_instance_id
    if instance_id is None:
        return group.members.get(member_id) or Member(member_id)
    if request.member_id:
        return find_static(group, instance_id, member_id)
    held = group.static.get(instance_id)
    if held is None:
        return Member(member_id)
    return replace_static(group, group.members[held], member_id, tx)


def sync(shard: GroupShard, received: CoordinatorRequest, now_ms: int, tx: Tx) -> None:
    request = received.request
    assert isinstance(request, SyncGroupRequest)
    group = shard.consumers.groups[request.group_id]
    member = _classic_member(group, request.member_id, request.group_instance_id, request.generation_id)
    assert member.classic is not None
    protocol = member.classic.supported_protocols[0]
    if (request.protocol_type or CONSUMER_TYPE) != CONSUMER_TYPE or (
        request.protocol_name or protocol.name
    ) != protocol.name:
        raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    if group.epochs.assignment > member.epoch and member.state is not MemberState.UNREVOKED_PARTITIONS:
        _await_join(group, member, now_ms, tx)
        tx.reply(tx.ticket, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        return
    tx.cancel((SYNC_TIMER, group.group_id, member.member_id))
    arm_session(shard, group, member, now_ms, tx)
    response = SyncGroupResponse(
        protocol_type=CONSUMER_TYPE,
        protocol_name=protocol.name,
        assignment=write_assignment(member.assigned, protocol.metadata, shard.image()),
    )
    tx.reply(tx.ticket, response)


def heartbeat(shard: GroupShard, received: CoordinatorRequest, now_ms: int, tx: Tx) -> None:
    request = received.request
    assert isinstance(request, HeartbeatRequest)
    group = shard.consumers.groups[request.group_id]
    member = _classic_member(group, request.member_id, request.group_instance_id, request.generation_id)
    arm_session(shard, group, member, now_ms, tx)
    must_join = (
        member.epoch < group.epochs.assignment
        or member.state is MemberState.UNREVOKED_PARTITIONS
        or (member.state is MemberState.UNRELEASED_PARTITIONS and not _waits(group, member))
    )
    if must_join:
        _await_join(group, member, now_ms, tx)
    tx.reply(tx.ticket, HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS if must_join else ErrorCode.NONE))


def _waits(group: ConsumerGroup, member: Member) -> bool:
    """Return whether another member still owns a partition of the member's target."""
    return any(
        group.owners.get((topic, partition)) not in (None, member.member_id)
        for topic, partitions in group.target(member.member_id).items()
        for partition in partitions
    )


def leave(shard: GroupShard, received: CoordinatorRequest, now_ms: int, tx: Tx) -> None:
    request = received.request
    assert isinstance(request, LeaveGroupRequest)
    group = shard.consumers.groups[request.group_id]
    codes, leaving = [], {}
    for one in leaving_members(received):
        try:
            if one.group_instance_id is not None:
                member_id = one.member_id or group.static.get(one.group_instance_id) or ""
                member = find_static(group, one.group_instance_id, member_id)
            else:
                member = find_member(group, one.member_id)
            leaving[member.member_id] = member
            codes.append(ErrorCode.NONE)
        except KafkaError as error:
            codes.append(error.code)
    if leaving:
        remove_members(shard, group, list(leaving.values()), now_ms, tx)
    tx.reply(tx.ticket, leave_response(received, codes))


def _classic_member(group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int) -> Member:
    member = find_member(group, member_id) if instance_id is None else find_static(group, instance_id, member_id)
    if member.classic is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} does not use the classic protocol.")
    if generation != member.epoch:
        raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
    return member


def _await_join(group: ConsumerGroup, member: Member, now_ms: int, tx: Tx) -> None:
    """Start the deadline for rejoining, unless it is already running."""
    if member.member_id not in group.awaited:
        group.awaited[member.member_id] = now_ms + member.rebalance_timeout_ms
        tx.arm((JOIN_TIMER, group.group_id, member.member_id), group.awaited[member.member_id])


def _stop_awaiting_join(group: ConsumerGroup, member_id: str, tx: Tx) -> None:
    if member_id in group.awaited:
        del group.awaited[member_id]
    tx.cancel((JOIN_TIMER, group.group_id, member_id))

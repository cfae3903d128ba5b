"""Online migration of a group between the classic and the consumer type (KIP-848).

A classic group becomes a consumer group when the first member of the new protocol joins, and a classic group again when the last one
has left. `group.consumer.migration.policy` sets which directions are allowed. Members keep their ids and their partitions; generation
and epoch are the same number. `consumer.classic_members` serves classic members of a consumer group.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import Uuid
from headrace.coordinators.group.assignors.spec import Assignment
from headrace.coordinators.group.classic.group import CONSUMER_TYPE, ClassicGroup
from headrace.coordinators.group.classic.group import Member as ClassicMember
from headrace.coordinators.group.classic.rebalance import JOIN, SYNC, prepare
from headrace.coordinators.group.classic.state import SESSION, prolong, record_of
from headrace.coordinators.group.classic.states import State
from headrace.coordinators.group.consumer.groups import ConsumerGroup
from headrace.coordinators.group.consumer.members import Member, Owned, sorted_names
from headrace.coordinators.group.consumer.record_values import (
    current_record,
    group_record,
    group_tombstones,
    member_record,
    member_tombstones,
    target_epoch_record,
    target_record,
)
from headrace.coordinators.group.consumer.timers import arm_session, cancel_all
from headrace.metadata.image import Image
from headrace.protocol.compiler import codec
from headrace.protocol.errors import DecodeError
from headrace.protocol.messages.embedded import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from headrace.protocol.messages.join_group import JoinGroupResponse
from headrace.protocol.messages.stored.consumer_groups import ConsumerGroupMemberMetadataValue
from headrace.protocol.messages.sync_group import SyncGroupResponse

if TYPE_CHECKING:
    from headrace.coordinators.group.shard import GroupShard, Tx

UPGRADES = ("bidirectional", "upgrade")  # policies that allow an upgrade
DOWNGRADES = ("bidirectional", "downgrade")
DISABLED = "disabled"
EMBEDDED_VERSION_MAX = 3
_VERSION = struct.Struct(">h")

ClassicMetadata = ConsumerGroupMemberMetadataValue.ClassicMemberMetadata


class CustomAssignor(DecodeError):
    """The assignment carries user data of a custom assignor, which an upgrade would lose."""


# --- messages embedded in the classic protocol


def _embedded_version(data: bytes) -> int:
    if len(data) < _VERSION.size:
        raise DecodeError("an embedded message without a version")
    version: int = _VERSION.unpack_from(data)[0]
    if version < 0:
        raise DecodeError(f"an embedded message of version {version}")
    return min(version, EMBEDDED_VERSION_MAX)  # newer versions start with the fields of the newest known one


def read_subscription(metadata: bytes) -> ConsumerProtocolSubscription:
    version = _embedded_version(metadata)
    subscription: ConsumerProtocolSubscription = codec(ConsumerProtocolSubscription, version).decode(
        metadata, _VERSION.size
    )
    return subscription


def read_assignment(data: bytes, image: Image) -> Assignment:
    """Return the partitions of an embedded assignment, ignoring topics that do not exist.

    Raise DecodeError if it cannot be read, and CustomAssignor if it has user data that would be lost.
    """
    if not data:
        return {}
    version = _embedded_version(data)
    assignment: ConsumerProtocolAssignment = codec(ConsumerProtocolAssignment, version).decode(data, _VERSION.size)
    if assignment.user_data:
        raise CustomAssignor("the assignment contains user data of a custom assignor")
    owned: dict[Uuid, tuple[int, ...]] = {}
    for one in assignment.assigned_partitions:
        topic = image.topics.get(one.topic)
        if topic is not None and one.partitions:
            owned[topic.id] = tuple(sorted(dict.fromkeys(one.partitions)))
    return owned


def write_assignment(owned: Owned, metadata: bytes, image: Image) -> bytes:
    """Encode an embedded assignment in the version of the member's subscription."""
    version = _embedded_version(metadata)
    topics = [
        ConsumerProtocolAssignment.TopicPartition(topic=image.topic_names[topic], partitions=sorted(owned[topic]))
        for topic in sorted(owned)
        if topic in image.topic_names
    ]
    assignment = ConsumerProtocolAssignment(assigned_partitions=topics)
    return _VERSION.pack(version) + codec(ConsumerProtocolAssignment, version).encode(assignment)


def classic_metadata(session_timeout_ms: int, protocols: Mapping[str, bytes]) -> ClassicMetadata:
    return ClassicMetadata(
        session_timeout_ms=session_timeout_ms,
        supported_protocols=[
            ConsumerGroupMemberMetadataValue.ClassicProtocol(name=name, metadata=data)
            for name, data in protocols.items()
        ],
    )


# --- classic to consumer


def upgrade(shard: GroupShard, group_id: str, now_ms: int, tx: Tx) -> None:
    """Turn a classic group into a consumer group. Members that wait for a generation have to rejoin.

    Raise KafkaError (GROUP_ID_NOT_FOUND) if the group cannot be upgraded.
    """
    classic = shard.classic.groups[group_id]
    why = _why_no_upgrade(shard, classic)
    if why is not None:
        raise _no_upgrade(group_id, why)
    try:
        members = [_upgraded(classic, member, shard.image()) for member in classic.members.values()]
    except CustomAssignor as error:
        raise _no_upgrade(
            group_id,
            "an unsupported custom assignor is in use; configure its members with range, roundrobin, sticky or"
            " cooperative-sticky first",
        ) from error
    except DecodeError as error:
        raise _no_upgrade(group_id, "the embedded consumer protocol is malformed") from error
    for waiting in classic.members.values():
        if waiting.joining is not None:
            tx.reply(waiting.joining, JoinGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        if waiting.syncing is not None:
            tx.reply(waiting.syncing, SyncGroupResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS))
        tx.cancel((SESSION, group_id, waiting.id))
    tx.cancel((JOIN, group_id))
    tx.cancel((SYNC, group_id))
    shard.classic.delete(group_id, tx)
    for member in members:
        tx.emit(member_record(group_id, member))
    group = shard.consumers.group(group_id)
    metadata_hash = shard.consumers.hashes.of_group(group.names(), shard.image())
    tx.emit(group_record(group_id, classic.generation, metadata_hash))
    for member in members:
        target = {topic: tuple(sorted(partitions)) for topic, partitions in member.assigned.items()}
        tx.emit(target_record(group_id, member.member_id, target))
    tx.emit(target_epoch_record(group_id, classic.generation, 0))
    for member in members:
        tx.emit(current_record(group_id, member))
        arm_session(shard, group, member, now_ms, tx)


def _no_upgrade(group_id: str, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.GROUP_ID_NOT_FOUND, f"Cannot upgrade classic group {group_id} to consumer group because {why}."
    )


def _why_no_upgrade(shard: GroupShard, group: ClassicGroup) -> str | None:
    settings = shard.settings
    if settings.group_consumer_migration_policy not in UPGRADES:
        return "online upgrade is disabled"
    if group.protocol_type != CONSUMER_TYPE:
        return "the group does not use the consumer embedded protocol"
    if len(group.members) > settings.group_consumer_max_size:
        return "the group size exceeds the consumer group maximum size"
    return None


def _upgraded(group: ClassicGroup, member: ClassicMember, image: Image) -> Member:
    protocols = dict(member.protocols)
    # A group has no chosen protocol before its first generation; any of the member's protocols lists the topics.
    subscription = read_subscription(protocols.get(group.protocol or "", next(iter(protocols.values()), b"")))
    assigned = read_assignment(member.assignment, image)
    return Member(
        member_id=member.id,
        instance_id=member.instance_id,
        rack_id=subscription.rack_id or None,
        client_id=member.client_id,
        client_host=member.client_host,
        names=sorted_names(subscription.topics),
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=classic_metadata(member.session_timeout_ms, protocols),
        epoch=group.generation,
        previous_epoch=group.generation,
        assigned={topic: dict.fromkeys(partitions, group.generation) for topic, partitions in assigned.items()},
    )


# --- consumer to classic


def downgrade_without(
    shard: GroupShard, group: ConsumerGroup, leaving: Mapping[str, Member], now_ms: int, tx: Tx
) -> bool:
    """Downgrade the group if the policy and its size allow it and all remaining members use the classic protocol.

    Members of the new classic group have to join again. Return whether the group was downgraded.
    """
    rest = [member for member in group.members.values() if member.member_id not in leaving]
    if not rest or not _may_downgrade(shard, rest):
        return False
    _downgrade(shard, group, rest, group.epochs.group, now_ms, tx, rebalance=True)
    return True


def may_downgrade_with(shard: GroupShard, group: ConsumerGroup, replaced: Member) -> bool:
    """Return whether the group becomes classic when this member of the new protocol rejoins with the classic one."""
    rest = [member for member in group.members.values() if member.member_id != replaced.member_id]
    return (
        replaced.classic is None and _may_downgrade(shard, rest) and len(group.members) <= shard.settings.group_max_size
    )


def downgrade(shard: GroupShard, group: ConsumerGroup, generation: int, now_ms: int, tx: Tx) -> None:
    """Turn the group into a classic group of this generation, which is the epoch that its members know.

    The members continue undisturbed if each of them is reconciled with its target; otherwise they have to join again.
    """
    epochs, rest = group.epochs, list(group.members.values())
    is_settled = epochs.assignment == epochs.group and all(one.is_reconciled(epochs.group) for one in rest)
    _downgrade(shard, group, rest, generation, now_ms, tx, rebalance=not is_settled)


def _may_downgrade(shard: GroupShard, rest: Iterable[Member]) -> bool:
    settings, rest = shard.settings, list(rest)
    return (
        settings.group_consumer_migration_policy in DOWNGRADES
        and all(member.classic is not None for member in rest)
        and len(rest) <= settings.group_max_size
    )


def _downgrade(
    shard: GroupShard,
    group: ConsumerGroup,
    rest: list[Member],
    generation: int,
    now_ms: int,
    tx: Tx,
    *,
    rebalance: bool,
) -> None:
    group_id = group.group_id
    for member in group.members.values():
        cancel_all(group_id, member.member_id, tx)
        for record in member_tombstones(group_id, member.member_id):
            tx.emit(record)
    for record in group_tombstones(group_id, sorted(regex for regex, _ in group.resolved.items())):
        tx.emit(record)
    classic = ClassicGroup(group_id, state=State.STABLE, since_ms=now_ms, generation=generation)
    for member in rest:
        classic.add(_downgraded(member), CONSUMER_TYPE)
    classic.protocol = classic.select_protocol()
    classic.subscribed = classic.find_subscribed()
    for member in rest:
        held = classic.members[member.member_id]
        assignment = write_assignment(member.assigned, held.metadata(classic.protocol), shard.image())
        classic.update(replace(held, assignment=assignment))
        prolong(classic, held, now_ms, tx)
    tx.emit(record_of(classic))
    if rebalance:
        prepare(shard, classic, now_ms, tx)
    shard.classic.keep(classic)


def _downgraded(member: Member) -> ClassicMember:
    assert member.classic is not None
    return ClassicMember(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        member.rebalance_timeout_ms,
        member.classic.session_timeout_ms,
        tuple((protocol.name, protocol.metadata) for protocol in member.classic.supported_protocols),
    )

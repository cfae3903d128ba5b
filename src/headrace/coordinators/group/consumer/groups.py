"""A consumer group: its tables, and the appliers of its records.

Only the appliers change durable state, when a record is emitted and while loading.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from headrace.base.ids import Uuid
from headrace.coordinators.group.assignors.spec import NO_PARTITIONS, Assignment
from headrace.coordinators.group.consumer.members import (
    LEAVING,
    NOTHING,
    Member,
    MemberState,
    Owned,
    owned_read,
    sorted_names,
    state_read,
)
from headrace.protocol.messages.stored.consumer_groups import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
)
from headrace.statemachine.undo import Table, UndoLog

if TYPE_CHECKING:
    from headrace.coordinators.group.consumer.regexes import Search
    from headrace.coordinators.group.shard import GroupShard

Key = TypeVar("Key")


class Epochs(Struct, frozen=True):
    group: int = 0
    metadata_hash: int = 0
    assignment: int = 0
    assigned_at_ms: int = 0
    has_old_metadata: bool = False  # whether there is a record of Kafka before 4.1, to be removed


class Resolved(Struct, frozen=True):
    """The topics that a regular expression matched when it was last resolved."""

    topics: tuple[str, ...]
    version: int  # offset of the metadata image
    at_ms: int


class ConsumerGroup:
    """A consumer group. Its tables undo their own changes; the table of groups undoes its creation and removal."""

    def __init__(self, group_id: str, undo: UndoLog) -> None:
        self.group_id = group_id
        self._facts: Table[str, Epochs] = Table(undo)
        self.members: Table[str, Member] = Table(undo)
        self.targets: Table[str, Assignment] = Table(undo)
        self.resolved: Table[str, Resolved] = Table(undo)
        # Derived from the members.
        self.static: Table[str, str] = Table(undo)  # instance id → member id
        self.owners: Table[tuple[Uuid, int], str] = Table(undo)
        self.subscriptions: Table[tuple[str, ...], int] = Table(undo)  # number of members with each subscription
        self.regexes: Table[str, int] = Table(undo)
        self.votes: Table[str, int] = Table(undo)  # number of members that request each assignor
        # Not durable: lost when the coordinator moves.
        self.seen: Table[str, int] = Table(undo)  # offset of the image whose topics were hashed last
        self.search: Table[str, Search] = Table(undo)  # the search in progress, if any
        self.awaited: Table[str, int] = Table(undo)  # classic members that have to rejoin, with their deadlines in ms

    @property
    def epochs(self) -> Epochs:
        return self._facts.get("") or Epochs()

    @epochs.setter
    def epochs(self, value: Epochs) -> None:
        self._facts[""] = value

    def committed_epochs(self) -> Epochs:
        return self._facts.committed("") or Epochs()

    def put(self, member: Member) -> None:
        old = self.members.get(member.member_id)
        self.members[member.member_id] = member
        self._count(old, member)
        if old is not None and old.instance_id is not None and old.instance_id != member.instance_id:
            self._remove_instance(old)
        if member.instance_id is not None:
            self.static[member.instance_id] = member.member_id
        if old is None or old.assigned is not member.assigned or old.revoking is not member.revoking:
            self._own(old, member)

    def remove(self, member_id: str) -> None:
        member = self.members.get(member_id)
        if member is not None:
            del self.members[member_id]
            self._count(member, None)
            self._remove_instance(member)
            self._own(member, None)
            if member_id in self.awaited:
                del self.awaited[member_id]

    def _remove_instance(self, member: Member) -> None:
        if member.instance_id is not None and self.static.get(member.instance_id) == member.member_id:
            del self.static[member.instance_id]

    def _count(self, old: Member | None, new: Member | None) -> None:
        _recount(self.subscriptions, old.names if old else (), new.names if new else ())
        _recount(self.regexes, old.regex if old else "", new.regex if new else "")
        _recount(self.votes, (old.server_assignor if old else "") or "", (new.server_assignor if new else "") or "")

    def _own(self, old: Member | None, new: Member | None) -> None:
        before = {} if old is None else dict.fromkeys(_flat(old.assigned) + _flat(old.revoking))
        after = {} if new is None else dict.fromkeys(_flat(new.assigned) + _flat(new.revoking))
        for topic_partition in before:
            # While a compacted log is loaded, another record may already have replaced the owner.
            if old is not None and topic_partition not in after and self.owners.get(topic_partition) == old.member_id:
                del self.owners[topic_partition]
        for topic_partition in after:
            if new is not None and self.owners.get(topic_partition) != new.member_id:
                self.owners[topic_partition] = new.member_id

    def target(self, member_id: str) -> Assignment:
        return self.targets.get(member_id) or NO_PARTITIONS

    def names(self) -> list[str]:
        """Return all topics that a member is subscribed to, by name or by a regular expression."""
        names: dict[str, None] = {}
        for subscription, _ in self.subscriptions.items():  # noqa: PERF102
            names |= dict.fromkeys(subscription)
        for resolved in self.resolved.values():
            names |= dict.fromkeys(resolved.topics)
        return sorted(names)

    def subscription(self, member: Member) -> tuple[str, ...]:
        resolved = self.resolved.get(member.regex) if member.regex else None
        if resolved is None or not resolved.topics:
            return member.names
        return sorted_names((*member.names, *resolved.topics)) if member.names else resolved.topics


def _flat(owned: Owned) -> list[tuple[Uuid, int]]:
    return [(topic, partition) for topic, partitions in owned.items() for partition in partitions]


def _recount(counts: Table[Key, int], old: Key, new: Key) -> None:
    """Decrement the count of `old` and increment that of `new`; empty keys are not counted."""
    if old == new:
        return
    if old:
        if counts[old] == 1:
            del counts[old]
        else:
            counts[old] -= 1
    if new:
        counts[new] = (counts.get(new) or 0) + 1


# --- appliers


def apply_group(shard: GroupShard, key: ConsumerGroupMetadataKey, value: ConsumerGroupMetadataValue | None) -> None:
    if value is None:
        if key.group_id in shard.consumers.groups:
            del shard.consumers.groups[key.group_id]
        return
    group = shard.consumers.group(key.group_id)
    group.epochs = replace(group.epochs, group=value.epoch, metadata_hash=value.metadata_hash)


def apply_old_metadata(
    shard: GroupShard, key: ConsumerGroupPartitionMetadataKey, value: ConsumerGroupPartitionMetadataValue | None
) -> None:
    """Apply the topic metadata that Kafka before 4.1 wrote; the hash has replaced it (KIP-1101)."""
    group = shard.consumers.groups.get(key.group_id)
    if value is not None:
        group = shard.consumers.group(key.group_id)
    if group is not None:
        group.epochs = replace(group.epochs, has_old_metadata=value is not None)


def apply_member(
    shard: GroupShard, key: ConsumerGroupMemberMetadataKey, value: ConsumerGroupMemberMetadataValue | None
) -> None:
    if value is None:
        group = shard.consumers.groups.get(key.group_id)
        if group is not None:
            group.remove(key.member_id)
        return
    group = shard.consumers.group(key.group_id)
    member = group.members.get(key.member_id) or Member(key.member_id)
    group.put(
        replace(
            member,
            instance_id=value.instance_id,
            rack_id=value.rack_id,
            client_id=value.client_id,
            client_host=value.client_host,
            names=sorted_names(value.subscribed_topic_names),
            regex=value.subscribed_topic_regex or "",
            rebalance_timeout_ms=value.rebalance_timeout_ms,
            server_assignor=value.server_assignor,
            classic=value.classic_member_metadata,
        )
    )


def apply_target_epoch(
    shard: GroupShard,
    key: ConsumerGroupTargetAssignmentMetadataKey,
    value: ConsumerGroupTargetAssignmentMetadataValue | None,
) -> None:
    group = shard.consumers.groups.get(key.group_id)
    if value is not None:
        group = shard.consumers.group(key.group_id)
        group.epochs = replace(
            group.epochs, assignment=value.assignment_epoch, assigned_at_ms=value.assignment_timestamp
        )
    elif group is not None:
        group.epochs = replace(group.epochs, assignment=0, assigned_at_ms=0)


def apply_target(
    shard: GroupShard,
    key: ConsumerGroupTargetAssignmentMemberKey,
    value: ConsumerGroupTargetAssignmentMemberValue | None,
) -> None:
    if value is not None:
        shard.consumers.group(key.group_id).targets[key.member_id] = {
            Uuid(topic.topic_id): tuple(sorted(topic.partitions)) for topic in value.topic_partitions
        }
        return
    group = shard.consumers.groups.get(key.group_id)
    if group is not None and key.member_id in group.targets:
        del group.targets[key.member_id]


def apply_current(
    shard: GroupShard,
    key: ConsumerGroupCurrentMemberAssignmentKey,
    value: ConsumerGroupCurrentMemberAssignmentValue | None,
) -> None:
    if value is not None:
        group = shard.consumers.group(key.group_id)
        member = group.members.get(key.member_id) or Member(key.member_id)
        group.put(
            replace(
                member,
                epoch=value.member_epoch,
                previous_epoch=value.previous_member_epoch,
                state=state_read(value.state),
                assigned=owned_read(value.assigned_partitions, value.member_epoch),
                revoking=owned_read(value.partitions_pending_revocation, value.member_epoch),
            )
        )
        return
    group_or_none = shard.consumers.groups.get(key.group_id)
    held = group_or_none.members.get(key.member_id) if group_or_none is not None else None
    if group_or_none is not None and held is not None:
        # Reset it to the time before its first assignment; a separate tombstone removes the member itself.
        group_or_none.put(
            replace(
                held,
                epoch=LEAVING,
                previous_epoch=LEAVING,
                state=MemberState.STABLE,
                assigned=NOTHING,
                revoking=NOTHING,
            )
        )


def apply_regex(
    shard: GroupShard, key: ConsumerGroupRegularExpressionKey, value: ConsumerGroupRegularExpressionValue | None
) -> None:
    if value is not None:
        shard.consumers.group(key.group_id).resolved[key.regular_expression] = Resolved(
            sorted_names(value.topics), value.version, value.timestamp
        )
        return
    group = shard.consumers.groups.get(key.group_id)
    if group is not None and key.regular_expression in group.resolved:
        del group.resolved[key.regular_expression]

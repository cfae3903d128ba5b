"""All classic groups of a shard: the table, the records, and the implementation of `GroupOwner`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from headrace.base.errors import ErrorCode, KafkaError
from headrace.coordinators.group.classic.group import CONSUMER_TYPE, ClassicGroup, Member
from headrace.coordinators.group.classic.states import ON_COMMIT, State
from headrace.coordinators.group.ownership import Listed, PartitionCheck
from headrace.coordinators.group.records import GroupRecord
from headrace.protocol.messages.offset_commit import OffsetCommitRequest
from headrace.protocol.messages.stored.offsets import GroupMetadataKey, GroupMetadataValue
from headrace.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from headrace.statemachine.undo import Table, UndoLog

if TYPE_CHECKING:
    from headrace.coordinators.group.request import CoordinatorRequest
    from headrace.coordinators.group.shard import GroupShard, Tx

CLASSIC = "classic"  # the group type, as ListGroups shows it
VALUE_VERSION = 3  # the version that Kafka 4.3 writes at any metadata.version
SESSION = "classic-session"

StoredMember = GroupMetadataValue.MemberMetadata


class ClassicState:
    """The classic groups of a shard; a GroupOwner."""

    def __init__(self, undo: UndoLog) -> None:
        self.groups: Table[str, ClassicGroup] = Table(undo)

    def draft(self, group_id: str) -> ClassicGroup | None:
        group = self.groups.get(group_id)
        return None if group is None else group.draft()

    def keep(self, group: ClassicGroup) -> None:
        """Store a draft, AFTER its records were emitted: applying them replaces the group by only what they contain."""
        self.groups[group.id] = group

    # --- GroupOwner

    def has(self, group_id: str) -> bool:
        return group_id in self.groups

    def group_ids(self) -> Iterable[str]:
        return self.groups.keys()

    def is_empty(self, group_id: str) -> bool:
        return self.groups[group_id].state is State.EMPTY

    def is_subscribed(self, group_id: str, topic: str) -> bool:
        return self.groups[group_id].is_subscribed(topic)

    def check_commit(self, received: CoordinatorRequest, now_ms: int, tx: Tx) -> PartitionCheck | None:
        request = received.request
        assert isinstance(request, OffsetCommitRequest)
        group, generation = self.groups[request.group_id], request.generation_id_or_member_epoch
        if generation < 0 and group.state is State.EMPTY:
            return None  # an administrator or a self-assigned consumer
        if generation < 0 and not request.member_id and request.group_instance_id is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        group.check_member(request.member_id, request.group_instance_id)
        if generation != group.generation:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        if (code := ON_COMMIT.get(group.state)) is not None:
            raise KafkaError(code)
        prolong(group, group.members[request.member_id], now_ms, tx)
        return None

    def check_transactional_commit(self, request: TxnOffsetCommitRequest) -> PartitionCheck | None:
        group = self.groups[request.group_id]
        if request.generation_id < 0 and group.state is State.EMPTY:
            return None
        if request.generation_id < 0 and not request.member_id and request.group_instance_id is None:
            return None
        group.check_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
        return None

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> None:
        """Accept every request: members of classic groups do not identify themselves."""

    def check_offset_delete(self, group_id: str) -> None:
        group = self.groups[group_id]
        if group.state is not State.EMPTY and group.protocol_type != CONSUMER_TYPE:
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)

    def check_delete(self, group_id: str) -> None:
        if not self.is_empty(group_id):
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)

    def retained_since(self, group_id: str, committed_ms: int) -> int | None:
        group = self.groups[group_id]
        if group.protocol_type is None:
            return committed_ms
        if group.state is State.EMPTY:
            return committed_ms if group.since_ms < 0 else group.since_ms
        known = group.protocol_type == CONSUMER_TYPE and group.subscribed is not None
        return committed_ms if known and group.state is State.STABLE else None

    def delete(self, group_id: str, tx: Tx) -> None:
        tx.emit(tombstone(group_id))

    def listed(self) -> list[Listed]:
        return [
            Listed(group_id, group.protocol_type or "", group.state.value, CLASSIC)
            for group_id, group in self.groups.items()
        ]


def prolong(group: ClassicGroup, member: Member, now_ms: int, tx: Tx, timeout_ms: int | None = None) -> None:
    """Restart the member's session, with its session timeout unless another one is given."""
    tx.arm((SESSION, group.id, member.id), now_ms + (member.session_timeout_ms if timeout_ms is None else timeout_ms))


# --- records


def tombstone(group_id: str) -> GroupRecord:
    return GroupRecord(GroupMetadataKey(group=group_id), None)


def record_of(group: ClassicGroup) -> GroupRecord:
    members = [
        StoredMember(
            member_id=member.id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            rebalance_timeout=member.rebalance_timeout_ms,
            session_timeout=member.session_timeout_ms,
            subscription=member.metadata(group.protocol),
            assignment=member.assignment,
        )
        for member in group.members.values()
    ]
    value = GroupMetadataValue(
        protocol_type=group.protocol_type or "",
        generation=group.generation,
        protocol=group.protocol,
        leader=group.leader,
        current_state_timestamp=group.since_ms,
        members=members,
    )
    return GroupRecord(GroupMetadataKey(group=group.id), value, VALUE_VERSION)


def new_group_record(group: ClassicGroup) -> GroupRecord:
    """Return the record that is written with the first join and only records that the group exists."""
    value = GroupMetadataValue(
        protocol_type="",
        generation=0,
        protocol=None,
        leader=None,
        current_state_timestamp=group.since_ms,
        members=[],
    )
    return GroupRecord(GroupMetadataKey(group=group.id), value, VALUE_VERSION)


def apply_group_metadata(shard: GroupShard, key: GroupMetadataKey, value: GroupMetadataValue | None) -> None:
    groups = shard.classic.groups
    if value is None:
        if key.group in groups:
            del groups[key.group]
        return
    group = ClassicGroup(
        key.group,
        state=State.STABLE if value.members else State.EMPTY,
        since_ms=value.current_state_timestamp,
        generation=value.generation,
        protocol_type=value.protocol_type or None,
        protocol=value.protocol,
    )
    for stored in value.members:
        timeout_ms = stored.session_timeout if stored.rebalance_timeout < 0 else stored.rebalance_timeout
        member = Member(
            stored.member_id,
            stored.group_instance_id,
            stored.client_id,
            stored.client_host,
            timeout_ms,
            stored.session_timeout,
            ((value.protocol or "", stored.subscription),),
            stored.assignment,
        )
        group.add(member, value.protocol_type)
    if value.leader in group.members:
        group.leader = value.leader
    group.subscribed = group.find_subscribed()
    groups[key.group] = group

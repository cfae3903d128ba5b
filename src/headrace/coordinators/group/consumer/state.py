"""All consumer groups of a shard, and the implementation of `ownership.GroupOwner`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import ZERO_UUID, Uuid
from headrace.coordinators.group.consumer import classic_members
from headrace.coordinators.group.consumer.groups import ConsumerGroup
from headrace.coordinators.group.consumer.members import Member
from headrace.coordinators.group.consumer.record_values import group_tombstones
from headrace.coordinators.group.consumer.regexes import Patterns
from headrace.coordinators.group.consumer.topic_hashes import TopicHashes
from headrace.coordinators.group.ownership import Listed, PartitionCheck
from headrace.metadata.image import Image
from headrace.protocol.messages.offset_commit import OffsetCommitRequest
from headrace.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from headrace.statemachine.undo import Table, UndoLog

if TYPE_CHECKING:
    from headrace.coordinators.group.request import CoordinatorRequest
    from headrace.coordinators.group.shard import Tx

EPOCH_COMMIT_VERSION_MIN = 9  # first version of OffsetCommit with member epochs
PROTOCOL_TYPE = "consumer"
GROUP_TYPE = "consumer"


class ConsumerState:
    def __init__(self, undo: UndoLog, image: Callable[[], Image]) -> None:
        self._undo = undo
        self._image = image
        self.groups: Table[str, ConsumerGroup] = Table(undo)
        self.hashes = TopicHashes()
        self.patterns = Patterns()

    def group(self, group_id: str) -> ConsumerGroup:
        """Return the group; create it if it does not exist."""
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = ConsumerGroup(group_id, self._undo)
        return group

    # --- GroupOwner

    def has(self, group_id: str) -> bool:
        return group_id in self.groups

    def group_ids(self) -> list[str]:
        return [group_id for group_id, _ in self.groups.items()]

    def is_empty(self, group_id: str) -> bool:
        return not len(self.groups[group_id].members)

    def is_subscribed(self, group_id: str, topic: str) -> bool:
        group = self.groups[group_id]
        return any(topic in names for names, _ in group.subscriptions.items()) or any(
            topic in resolved.topics for resolved in group.resolved.values()
        )

    def check_commit(self, received: CoordinatorRequest, now_ms: int, tx: Tx) -> PartitionCheck | None:
        request = received.request
        assert isinstance(request, OffsetCommitRequest)
        group, epoch = self.groups[request.group_id], request.generation_id_or_member_epoch
        if epoch < 0 and not len(group.members):
            return None  # an administrator or a self-assigned consumer
        member = group.members.get(request.member_id)
        if member is None:
            raise _unknown_member(request.member_id, request.group_id)
        if member.classic is not None:
            _check_generation(member, epoch)
            return None
        if received.version < EPOCH_COMMIT_VERSION_MIN:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION,
                f"Members of a consumer group commit with version {EPOCH_COMMIT_VERSION_MIN} of OffsetCommit or above.",
            )
        return self._check_epoch(member, epoch)

    def check_transactional_commit(self, request: TxnOffsetCommitRequest) -> PartitionCheck | None:
        group, epoch = self.groups[request.group_id], request.generation_id
        if epoch < 0 and not len(group.members):
            return None
        if epoch < 0 and not request.member_id and request.group_instance_id is None:
            return None
        member = group.members.get(request.member_id)
        if member is None:
            raise _unknown_member(request.member_id, request.group_id)
        if member.classic is not None:
            _check_generation(member, epoch)
            return None
        return self._check_epoch(member, epoch)

    def _check_epoch(self, member: Member, epoch: int) -> PartitionCheck | None:
        if epoch == member.epoch:
            return None
        if epoch > member.epoch:
            raise _stale(epoch, member.epoch)

        def check(topic: str, topic_id: Uuid, partition: int) -> None:
            """Accept an older epoch if the member already had the partition at that epoch (KIP-1251)."""
            if topic_id == ZERO_UUID:
                found = self._image().topics.get(topic)
                topic_id = ZERO_UUID if found is None else found.id
            given = member.assigned.get(topic_id, {}).get(partition)
            if given is None:
                given = member.revoking.get(topic_id, {}).get(partition)
            if given is None or given > epoch:
                raise _stale(epoch, member.epoch)

        return check

    def check_fetch(self, group_id: str, member_id: str | None, member_epoch: int) -> None:
        group = self.groups.committed(group_id)
        if group is None or (member_id is None and member_epoch < 0):
            return
        member = group.members.committed(member_id or "")
        if member is None:
            raise _unknown_member(member_id or "", group_id)
        if member.classic is not None:
            _check_generation(member, member_epoch)
        elif member_epoch != member.epoch:
            raise _stale(member_epoch, member.epoch)

    def check_offset_delete(self, group_id: str) -> None:
        """Accept every request: subscriptions are checked for each topic."""

    def check_delete(self, group_id: str) -> None:
        if not self.is_empty(group_id):
            raise KafkaError(ErrorCode.NON_EMPTY_GROUP)

    def retained_since(self, group_id: str, committed_ms: int) -> int | None:
        return committed_ms

    def delete(self, group_id: str, tx: Tx) -> None:
        group = self.groups[group_id]
        for record in group_tombstones(group_id, sorted(regex for regex, _ in group.resolved.items())):
            tx.emit(record)

    def listed(self) -> list[Listed]:
        return [
            Listed(group_id=group_id, protocol_type=PROTOCOL_TYPE, group_state=state_name(group), group_type=GROUP_TYPE)
            for group_id, group in sorted(self.groups.committed_items(), key=lambda pair: pair[0])
        ]

    # --- classic members

    classic_join = staticmethod(classic_members.join)
    classic_sync = staticmethod(classic_members.sync)
    classic_heartbeat = staticmethod(classic_members.heartbeat)
    classic_leave = staticmethod(classic_members.leave)


def state_name(group: ConsumerGroup) -> str:
    """Return the name of the group's committed state."""
    epochs, is_empty, is_reconciled = group.committed_epochs(), True, True
    for _, member in group.members.committed_items():
        is_empty = False
        is_reconciled &= member.is_reconciled(epochs.assignment)
    if is_empty:
        return "Empty"
    if epochs.group > epochs.assignment:
        return "Assigning"
    return "Stable" if is_reconciled else "Reconciling"


def _unknown_member(member_id: str, group_id: str) -> KafkaError:
    return KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} is not a member of group {group_id}.")


def _stale(received: int, known: int) -> KafkaError:
    return KafkaError(
        ErrorCode.STALE_MEMBER_EPOCH, f"The member epoch {received} does not match the current one, {known}."
    )


def _check_generation(member: Member, received: int) -> None:
    if received != member.epoch:
        raise KafkaError(
            ErrorCode.ILLEGAL_GENERATION,
            f"The generation {received} does not match the current member epoch, {member.epoch}.",
        )

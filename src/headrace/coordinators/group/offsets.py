"""Committed offsets: OffsetCommit 2–10, OffsetDelete 0, and the table of committed offsets.

Offsets belong to a group id, not to a type of group: they stay when a group changes its type, and a group may consist of offsets only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import ZERO_UUID, Uuid
from headrace.coordinators.group.ownership import GroupOwner, PartitionCheck, owner_of
from headrace.coordinators.group.pending_offsets import NEWEST, PendingOffsets
from headrace.coordinators.group.records import GroupRecord
from headrace.protocol.declare import Struct
from headrace.protocol.messages.offset_commit import OffsetCommitRequest, OffsetCommitResponse
from headrace.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from headrace.protocol.messages.stored.offsets import (
    LegacyOffsetCommitKey,
    LegacyOffsetCommitValue,
    OffsetCommitKey,
    OffsetCommitValue,
)
from headrace.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest
from headrace.statemachine.transactional import Producer
from headrace.statemachine.undo import Table, UndoLog

if TYPE_CHECKING:
    from headrace.coordinators.group.request import CoordinatorRequest
    from headrace.coordinators.group.shard import GroupShard, Tx

NO_EXPIRY = -1  # the broker's retention applies
VALUE_VERSION = 4
VALUE_VERSION_WITH_EXPIRY = 1  # for clients that choose the retention (OffsetCommit before version 5)
GROUP_ERRORS_VERSION_MIN = 9

PartitionKey = tuple[str, int]  # topic and partition
DeletedTopic = tuple[Uuid, int]  # topic id, and time of the deletion in ms
Partition = OffsetCommitRequest.OffsetCommitRequestPartition
TransactionalPartition = TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition
PartitionResponse = OffsetCommitResponse.OffsetCommitResponsePartition


class CommittedOffset(msgspec.Struct, frozen=True, gc=False):
    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int
    expire_ms: int
    topic_id: Uuid  # zero if committed by name or by a version without topic ids


class TopicsDeleted(Struct):
    """Internal request that the shell sends to every shard when topics have been deleted."""

    class Topic(Struct):
        name: str = ""
        topic_id: Uuid = ZERO_UUID

    topics: list[Topic] = []


class OffsetsState:
    def __init__(self, undo: UndoLog) -> None:
        self._undo = undo
        self.groups: Table[str, Table[PartitionKey, CommittedOffset]] = Table(undo)  # no inner table is empty
        self.pending = PendingOffsets(undo)
        # Position of the expiry sweep, and deleted topics whose offsets it must remove; see `expiry`. Not durable.
        self.sweep: Iterator[tuple[str, PartitionKey | None]] | None = None
        self.deleted: dict[str, DeletedTopic] = {}

    def has(self, group_id: str) -> bool:
        """Return whether the group has offsets, including pending ones."""
        return group_id in self.groups or group_id in self.pending.groups

    def group_ids(self) -> Iterable[str]:
        return dict.fromkeys([*self.groups.keys(), *self.pending.groups.keys()])

    def topic_partitions(self, group_id: str) -> Iterable[PartitionKey]:
        """Return the topic-partitions that have an offset, including pending ones."""
        table = self.groups.get(group_id)
        return dict.fromkeys([*([] if table is None else table.keys()), *self.pending.topic_partitions(group_id)])

    def put(
        self, group_id: str, topic_partition: PartitionKey, offset: CommittedOffset, position: int = NEWEST
    ) -> None:
        """Store a committed offset; `position` is the log offset of its record, if later records may exist."""
        if len(self.pending.groups):
            self.pending.overtake(group_id, topic_partition, position)
        table = self.groups.get(group_id)
        if table is None:
            table = self.groups[group_id] = Table(self._undo)
        table[topic_partition] = offset

    def drop(self, group_id: str, topic_partition: PartitionKey) -> None:
        if len(self.pending.groups):
            self.pending.drop(group_id, topic_partition)
        table = self.groups.get(group_id)
        if table is not None and topic_partition in table:
            del table[topic_partition]
            if not len(table):
                del self.groups[group_id]

    def get(self, group_id: str, topic_partition: PartitionKey) -> CommittedOffset | None:
        table = self.groups.get(group_id)
        return None if table is None else table.get(topic_partition)

    def has_at(self, group_id: str, topic_partition: PartitionKey) -> bool:
        """Return whether the topic-partition has an offset, including pending ones."""
        return self.get(group_id, topic_partition) is not None or self.pending.has(group_id, topic_partition)


# --- requests


def commit(shard: GroupShard, received: CoordinatorRequest, now_ms: int, tx: Tx) -> None:
    request = received.request
    assert isinstance(request, OffsetCommitRequest)
    check = _check_commit(shard, received, request, now_ms, tx)
    expire_ms = NO_EXPIRY if request.retention_time_ms < 0 else now_ms + request.retention_time_ms
    metadata_max = shard.settings.offset_metadata_max_bytes
    response = OffsetCommitResponse()
    for topic in request.topics:
        results = []
        for partition in topic.partitions:
            index = partition.partition_index
            if len(partition.committed_metadata or "") > metadata_max:
                results.append(PartitionResponse(index, ErrorCode.OFFSET_METADATA_TOO_LARGE))
                continue
            if check is not None:
                check(topic.name, topic.topic_id, index)
            tx.emit(commit_record(request.group_id, topic.name, topic.topic_id, partition, now_ms, expire_ms))
            results.append(PartitionResponse(index))
        response.topics.append(OffsetCommitResponse.OffsetCommitResponseTopic(topic.name, topic.topic_id, results))
    tx.reply(tx.ticket, response)


def _check_commit(
    shard: GroupShard, received: CoordinatorRequest, request: OffsetCommitRequest, now_ms: int, tx: Tx
) -> PartitionCheck | None:
    owner = owner_of(shard.owners, request.group_id)
    if owner is not None:
        return owner.check_commit(received, now_ms, tx)
    if request.generation_id_or_member_epoch < 0:
        return None  # a self-assigned consumer or an administrator: the offsets create the group
    if shard.offsets.has(request.group_id):
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    known = received.version >= GROUP_ERRORS_VERSION_MIN
    raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND if known else ErrorCode.ILLEGAL_GENERATION)


def delete_offsets(shard: GroupShard, received: CoordinatorRequest, now_ms: int, tx: Tx) -> None:
    """Delete the offsets of topics that no member of the group is subscribed to."""
    request = received.request
    assert isinstance(request, OffsetDeleteRequest)
    owner = owner_of(shard.owners, request.group_id)
    if owner is not None:
        owner.check_offset_delete(request.group_id)
    elif not shard.offsets.has(request.group_id):
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND)
    response = OffsetDeleteResponse()
    for topic in request.topics:
        code = _deletion_code(owner, request.group_id, topic.name)
        results = []
        for partition in topic.partitions:
            index = partition.partition_index
            results.append(OffsetDeleteResponse.OffsetDeleteResponsePartition(index, code))
            topic_partition = (topic.name, index)
            if code is ErrorCode.NONE and shard.offsets.has_at(request.group_id, topic_partition):
                tx.emit(offset_tombstone(request.group_id, topic_partition))
        response.topics.append(OffsetDeleteResponse.OffsetDeleteResponseTopic(topic.name, results))
    tx.reply(tx.ticket, response)


def _deletion_code(owner: GroupOwner | None, group_id: str, topic: str) -> ErrorCode:
    subscribed = owner is not None and owner.is_subscribed(group_id, topic)
    return ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if subscribed else ErrorCode.NONE


# --- records


def commit_record(
    group_id: str,
    topic: str,
    topic_id: Uuid,
    partition: Partition | TransactionalPartition,
    now_ms: int,
    expire_ms: int = NO_EXPIRY,
    producer: Producer | None = None,
) -> GroupRecord:
    value = OffsetCommitValue(
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=partition.committed_metadata or "",
        commit_timestamp=now_ms,
        expire_timestamp=expire_ms,
        topic_id=topic_id,
    )
    version = VALUE_VERSION if expire_ms == NO_EXPIRY else VALUE_VERSION_WITH_EXPIRY
    return GroupRecord(OffsetCommitKey(group_id, topic, partition.partition_index), value, version, producer=producer)


def offset_tombstone(group_id: str, topic_partition: PartitionKey) -> GroupRecord:
    return GroupRecord(OffsetCommitKey(group_id, *topic_partition), None)


def apply_offset(shard: GroupShard, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
    topic_partition = (sys.intern(key.topic), key.partition)  # a shard may hold a million offsets of few topics
    if value is None:
        shard.offsets.drop(key.group, topic_partition)
        return
    shard.offsets.put(key.group, topic_partition, committed_offset(value))


def committed_offset(value: OffsetCommitValue) -> CommittedOffset:
    return CommittedOffset(
        value.offset,
        value.leader_epoch,
        value.metadata,
        value.commit_timestamp,
        value.expire_timestamp,
        ZERO_UUID if value.topic_id == ZERO_UUID else value.topic_id,
    )


def apply_legacy_offset(shard: GroupShard, key: LegacyOffsetCommitKey, value: LegacyOffsetCommitValue | None) -> None:
    """Apply an offset record in the format of old Kafka versions."""
    modern = None
    if value is not None:
        modern = OffsetCommitValue(
            offset=value.offset, metadata=value.metadata, commit_timestamp=value.commit_timestamp
        )
    apply_offset(shard, OffsetCommitKey(key.group, key.topic, key.partition), modern)

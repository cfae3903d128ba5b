"""TxnOffsetCommit 0–5, and the transaction markers that commit or abort its offsets."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import ZERO_UUID
from headrace.coordinators.group.offsets import commit_record, committed_offset
from headrace.coordinators.group.ownership import PartitionCheck, owner_of
from headrace.coordinators.group.records import GroupRecord
from headrace.coordinators.group.request import CoordinatorRequest
from headrace.protocol.declare import Struct
from headrace.protocol.messages.stored.offsets import OffsetCommitKey, OffsetCommitValue
from headrace.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest, TxnOffsetCommitResponse
from headrace.statemachine.transactional import MarkerRecord

if TYPE_CHECKING:
    from headrace.coordinators.group.shard import GroupShard, Tx

PartitionResponse = TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition
TopicResponse = TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic


class EndOffsets(Struct):
    """Internal request of the shell to write a transaction coordinator's marker to the partition of this shard."""

    marker: MarkerRecord


def end_request(marker: MarkerRecord) -> CoordinatorRequest:
    return CoordinatorRequest(EndOffsets(marker), 0)


# --- requests


def commit_in_transaction(shard: GroupShard, received: CoordinatorRequest, now_ms: int, tx: Tx) -> None:
    request = received.request
    assert isinstance(request, TxnOffsetCommitRequest)
    if request.producer_id < 0:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_ID_MAPPING)
    if request.producer_epoch < 0:
        raise KafkaError(ErrorCode.INVALID_PRODUCER_EPOCH)
    try:
        tx.reply(tx.ticket, _write(shard, request, now_ms, tx))
    except KafkaError as error:
        # The API does not have this error: its clients only know generations.
        if error.code is ErrorCode.STALE_MEMBER_EPOCH:
            raise KafkaError(ErrorCode.ILLEGAL_GENERATION, error.message) from error
        raise


def _write(shard: GroupShard, request: TxnOffsetCommitRequest, now_ms: int, tx: Tx) -> TxnOffsetCommitResponse:
    check = _check(shard, request)
    producer = (request.producer_id, request.producer_epoch)
    metadata_max = shard.settings.offset_metadata_max_bytes
    topics = shard.image().topics
    response = TxnOffsetCommitResponse()
    for topic in request.topics:
        known = topics.get(topic.name)
        topic_id = ZERO_UUID if known is None else known.id
        results = []
        for partition in topic.partitions:
            index = partition.partition_index
            if len(partition.committed_metadata or "") > metadata_max:
                results.append(PartitionResponse(index, ErrorCode.OFFSET_METADATA_TOO_LARGE))
                continue
            if check is not None:
                check(topic.name, topic_id, index)
            # Stored by name, as in Kafka: the request has no topic ids.
            tx.emit(commit_record(request.group_id, topic.name, ZERO_UUID, partition, now_ms, producer=producer))
            results.append(PartitionResponse(index))
        response.topics.append(TopicResponse(topic.name, results))
    return response


def _check(shard: GroupShard, request: TxnOffsetCommitRequest) -> PartitionCheck | None:
    owner = owner_of(shard.owners, request.group_id)
    if owner is not None:
        return owner.check_transactional_commit(request)
    if request.generation_id < 0:
        return None  # a self-assigned consumer: the offsets create the group
    has_offsets = shard.offsets.has(request.group_id)
    raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID if has_offsets else ErrorCode.ILLEGAL_GENERATION)


def end(shard: GroupShard, received: CoordinatorRequest, now_ms: int, tx: Tx) -> None:
    request = received.request
    assert isinstance(request, EndOffsets)
    tx.emit(request.marker)
    tx.reply(tx.ticket, None)


# --- records


def is_pending(record: GroupRecord) -> bool:
    """Return whether a transaction's record takes effect only when the transaction commits.

    A tombstone takes effect at once, as in Kafka.
    """
    return record.value is not None and type(record.key) is OffsetCommitKey


def apply_pending(shard: GroupShard, record: GroupRecord, position: int) -> None:
    key, value, producer = record.key, record.value, record.producer
    assert isinstance(key, OffsetCommitKey) and isinstance(value, OffsetCommitValue) and producer is not None
    topic_partition = (sys.intern(key.topic), key.partition)
    shard.offsets.pending.put(producer[0], key.group, topic_partition, position, committed_offset(value))


def apply_marker(shard: GroupShard, marker: MarkerRecord) -> None:
    """Commit or drop the producer's pending offsets.

    The epoch does not matter: a log accepts no record of an older epoch, and the marker of a newer one ends the open transaction.
    """
    for group_id, topic_partition, pending in shard.offsets.pending.end(marker.producer_id):
        if marker.commit and pending.offset is not None:
            shard.offsets.put(group_id, topic_partition, pending.offset, pending.position)

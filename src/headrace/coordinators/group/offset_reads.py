"""OffsetFetch 1–10 for one group.

A plain fetch bypasses the runtime and reads the state that is already committed in the journal. With require_stable the fetch is a
decision: it reads the newest state, and its response waits until that state is committed too. Partitions for which an open
transaction has a pending offset then get an error instead of an offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.base.errors import ErrorCode
from headrace.base.ids import ZERO_UUID, Uuid
from headrace.coordinators.group.offsets import CommittedOffset, PartitionKey
from headrace.coordinators.group.ownership import owner_of
from headrace.coordinators.group.pending_offsets import PendingOffsets
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from headrace.statemachine.undo import Table

if TYPE_CHECKING:
    from headrace.coordinators.group.request import CoordinatorRequest
    from headrace.coordinators.group.shard import GroupShard, Tx

NO_OFFSET = -1
NO_EPOCH = -1

FetchGroup = OffsetFetchRequest.OffsetFetchRequestGroup
FetchedGroup = OffsetFetchResponse.OffsetFetchResponseGroup
FetchedTopic = OffsetFetchResponse.OffsetFetchResponseTopics
Fetched = OffsetFetchResponse.OffsetFetchResponsePartitions


def fetch_stable(shard: GroupShard, received: CoordinatorRequest, now_ms: int, tx: Tx) -> None:
    request = received.request
    assert isinstance(request, FetchGroup)
    tx.reply(tx.ticket, fetch(shard, request, newest=True))


def fetch(shard: GroupShard, request: FetchGroup, *, newest: bool = False) -> FetchedGroup:
    """Return the offsets of the requested topics, or of all topics if the request has no topic list.

    Topics must have their names set. Raise KafkaError if the member may not fetch offsets.
    """
    owner = owner_of(shard.owners, request.group_id)
    if owner is not None:
        owner.check_fetch(request.group_id, request.member_id, request.member_epoch)
    groups = shard.offsets.groups
    table = groups.get(request.group_id) if newest else groups.committed(request.group_id)
    if request.topics is None:
        topics = _all(table, newest)
    else:
        topics = [
            FetchedTopic(
                topic.name,
                topic.topic_id,
                [
                    _fetched(index, _find(table, (topic.name, index), topic.topic_id, newest))
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics
        ]
    if newest and request.group_id in shard.offsets.pending.groups:
        _hide_unstable(topics, shard.offsets.pending, request.group_id)
    return FetchedGroup(request.group_id, topics)


def _hide_unstable(topics: list[FetchedTopic], pending: PendingOffsets, group_id: str) -> None:
    for topic in topics:
        topic.partitions = [
            Fetched(one.partition_index, NO_OFFSET, NO_EPOCH, "", ErrorCode.UNSTABLE_OFFSET_COMMIT)
            if pending.has(group_id, (topic.name, one.partition_index))
            else one
            for one in topic.partitions
        ]


def _find(
    table: Table[PartitionKey, CommittedOffset] | None, topic_partition: PartitionKey, topic_id: Uuid, newest: bool
) -> CommittedOffset | None:
    """Return the committed offset, unless the ids show that it belongs to another topic with the same name."""
    if table is None:
        return None
    found = table.get(topic_partition) if newest else table.committed(topic_partition)
    if found is None or ZERO_UUID in (topic_id, found.topic_id) or topic_id == found.topic_id:
        return found
    return None


def _all(table: Table[PartitionKey, CommittedOffset] | None, newest: bool) -> list[FetchedTopic]:
    topics: dict[str, list[Fetched]] = {}
    if table is not None:
        for (topic, index), found in sorted(table.items() if newest else table.committed_items()):
            topics.setdefault(topic, []).append(_fetched(index, found))
    return [FetchedTopic(name=name, partitions=partitions) for name, partitions in topics.items()]


def _fetched(index: int, found: CommittedOffset | None) -> Fetched:
    if found is None:
        return Fetched(index, NO_OFFSET, NO_EPOCH, "")
    return Fetched(index, found.offset, found.leader_epoch, found.metadata)

"""Expiry of old offsets and of groups without offsets (KIP-211), and removal of the offsets of deleted topics.

A sweep examines everything in the shard, a few entries per turn. Each entry is looked up again before it is removed, because a newer
commit may have arrived. A failed turn is not retried: the next sweep finds what it left behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

from headrace.base.ids import ZERO_UUID, Uuid
from headrace.coordinators.group.offsets import (
    NO_EXPIRY,
    CommittedOffset,
    DeletedTopic,
    PartitionKey,
    TopicsDeleted,
    offset_tombstone,
)
from headrace.coordinators.group.ownership import GroupOwner, owner_of

if TYPE_CHECKING:
    from headrace.coordinators.group.request import CoordinatorRequest
    from headrace.coordinators.group.shard import GroupShard, Tx

SWEEP = "offsets-sweep"
EXAMINED_PER_TURN = 200  # offsets and groups examined per turn; also bounds the batch that is written
MINUTE_MS = 60_000

# A group id and one of its topic-partitions, or None for the group itself, which follows all of its partitions.
Found = tuple[str, PartitionKey | None]


def begin(shard: GroupShard, now_ms: int, tx: Tx) -> None:
    tx.arm((SWEEP,), now_ms + shard.settings.offsets_retention_check_interval_ms)


def on_sweep_timer(shard: GroupShard, timer: tuple[str], now_ms: int, tx: Tx) -> None:
    """Expire the next entries of the sweep and arm the timer of the next turn.

    The position of the sweep is not durable: if it is lost, the sweep starts over.
    """
    if shard.offsets.sweep is None:
        shard.offsets.sweep = _everything(shard)
    found = list(islice(shard.offsets.sweep, EXAMINED_PER_TURN))
    deleted = dict(shard.offsets.deleted)
    if len(found) < EXAMINED_PER_TURN:
        shard.offsets.sweep = None
        shard.offsets.deleted.clear()
        tx.arm((SWEEP,), now_ms + shard.settings.offsets_retention_check_interval_ms)
    else:
        tx.arm((SWEEP,), now_ms + 1)
    for group_id, topic_partition in found:
        owner = owner_of(shard.owners, group_id)
        if topic_partition is None:
            _expire_group(shard, owner, group_id, tx)
        else:
            _expire_offset(shard, owner, group_id, topic_partition, deleted.get(topic_partition[0]), now_ms, tx)


def _everything(shard: GroupShard) -> Iterator[Found]:
    owned = [group_id for owner in shard.owners for group_id in owner.group_ids()]
    for group_id in dict.fromkeys([*owned, *shard.offsets.group_ids()]):
        for topic_partition in shard.offsets.topic_partitions(group_id):
            yield group_id, topic_partition
        yield group_id, None


def _expire_offset(
    shard: GroupShard,
    owner: GroupOwner | None,
    group_id: str,
    topic_partition: PartitionKey,
    deleted: DeletedTopic | None,
    now_ms: int,
    tx: Tx,
) -> None:
    committed, pending = shard.offsets.get(group_id, topic_partition), shard.offsets.pending
    if deleted is not None:
        found = pending.at(group_id, topic_partition) + ([] if committed is None else [committed])
        if any(_is_of(one, *deleted) for one in found):
            tx.emit(offset_tombstone(group_id, topic_partition))
            return
    if committed is None or pending.has(group_id, topic_partition):
        return  # an open transaction is about to replace it
    if owner is None or not owner.is_subscribed(group_id, topic_partition[0]):
        retention_ms = shard.settings.offsets_retention_minutes * MINUTE_MS
        if _is_expired(owner, group_id, committed, now_ms, retention_ms):
            tx.emit(offset_tombstone(group_id, topic_partition))


def _is_of(committed: CommittedOffset, topic_id: Uuid, deleted_ms: int) -> bool:
    """Return whether the offset belongs to the deleted topic, not to a newer topic with the same name."""
    if committed.topic_id == ZERO_UUID:
        return committed.committed_ms <= deleted_ms
    return committed.topic_id == topic_id


def _is_expired(
    owner: GroupOwner | None, group_id: str, committed: CommittedOffset, now_ms: int, retention_ms: int
) -> bool:
    since_ms: int | None = committed.committed_ms
    if owner is not None:
        since_ms = owner.retained_since(group_id, committed.committed_ms)
    if since_ms is None:
        return False
    if committed.expire_ms != NO_EXPIRY:
        return now_ms >= committed.expire_ms
    return now_ms - since_ms >= retention_ms


def _expire_group(shard: GroupShard, owner: GroupOwner | None, group_id: str, tx: Tx) -> None:
    """Remove the group if it has neither offsets nor members."""
    if shard.offsets.has(group_id):
        return
    if owner is None:
        shard.classic.delete(group_id, tx)
    elif owner.is_empty(group_id):
        owner.delete(group_id, tx)


def on_topics_deleted(shard: GroupShard, received: CoordinatorRequest, now_ms: int, tx: Tx) -> None:
    request = received.request
    assert isinstance(request, TopicsDeleted)
    for topic in request.topics:
        shard.offsets.deleted[topic.name] = (topic.topic_id, now_ms)
    shard.offsets.sweep = None
    tx.arm((SWEEP,), now_ms)
    tx.reply(tx.ticket, None)

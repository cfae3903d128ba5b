"""The target assignment of a group: runs the assignor at the group's epoch and emits the changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.base.ids import Uuid
from headrace.coordinators.group.assignors import ASSIGNORS
from headrace.coordinators.group.assignors.spec import NO_PARTITIONS, MemberSpec
from headrace.coordinators.group.consumer.groups import ConsumerGroup
from headrace.coordinators.group.consumer.record_values import target_epoch_record, target_record
from headrace.coordinators.group.settings import GroupSettings
from headrace.metadata.image import GROUP_CONFIG, Image

if TYPE_CHECKING:
    from headrace.coordinators.group.shard import GroupShard, Tx


def group_option(shard: GroupShard, group_id: str, name: str) -> int:
    """Return a `consumer.…` option of the group, or the node's setting if the group does not override it."""
    text = shard.image().config(GROUP_CONFIG, group_id).get(name)
    if text is not None:
        return int(text)
    default: int = getattr(shard.settings, "group_" + name.replace(".", "_"))
    return default


def assign_if_due(shard: GroupShard, group: ConsumerGroup, now_ms: int, tx: Tx) -> None:
    """Compute a new target assignment if the group's epoch requires one, at most once per interval (KIP-1263).

    A member that joins in between gets no partitions until a later heartbeat.
    """
    epochs = group.epochs
    if epochs.group <= epochs.assignment:
        return
    since_ms = now_ms - epochs.assigned_at_ms
    if 0 <= since_ms < group_option(shard, group.group_id, "consumer.assignment.interval.ms"):
        return
    image = shard.image()
    topics: dict[tuple[str, ...], tuple[Uuid, ...]] = {}
    members = [
        MemberSpec(
            member_id=member.member_id,
            topics=_ids(group.subscription(member), image, topics),
            target=group.target(member.member_id),
            instance_id=member.instance_id,
            rack=member.rack_id,
        )
        for member in group.members.values()
    ]
    partitions = {
        topic_id: len(topic.partitions)
        for ids in topics.values()
        for topic_id in ids
        if (topic := image.topic_by_id(topic_id)) is not None
    }
    response = ASSIGNORS[chosen_assignor(group, shard.settings)](members, partitions)
    for member in members:
        target = response.get(member.member_id, NO_PARTITIONS)
        if member.member_id not in group.targets or group.targets[member.member_id] != target:
            tx.emit(target_record(group.group_id, member.member_id, target))
    tx.emit(target_epoch_record(group.group_id, epochs.group, now_ms))


def _ids(names: tuple[str, ...], image: Image, known: dict[tuple[str, ...], tuple[Uuid, ...]]) -> tuple[Uuid, ...]:
    ids = known.get(names)
    if ids is None:
        ids = known[names] = topic_ids(names, image)
    return ids


def topic_ids(names: tuple[str, ...], image: Image) -> tuple[Uuid, ...]:
    """Return the ids of those topics that exist, ascending."""
    return tuple(sorted(topic.id for name in names if (topic := image.topics.get(name)) is not None))


def chosen_assignor(group: ConsumerGroup, settings: GroupSettings, votes: dict[str, int] | None = None) -> str:
    """Return the assignor that most members request; the first of the node's list wins ties and is the default."""
    counted = dict(group.votes.items()) if votes is None else votes
    return max(settings.group_consumer_assignors, key=lambda name: counted.get(name, 0))

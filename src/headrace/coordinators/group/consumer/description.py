"""ConsumerGroupDescribe, from the committed state of a consumer group."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import Uuid
from headrace.coordinators.group.assignors.spec import NO_PARTITIONS
from headrace.coordinators.group.consumer.groups import ConsumerGroup
from headrace.coordinators.group.consumer.members import Member
from headrace.coordinators.group.consumer.state import state_name
from headrace.coordinators.group.consumer.targets import chosen_assignor
from headrace.metadata.image import Image
from headrace.protocol.messages.consumer_group_describe import ConsumerGroupDescribeResponse

if TYPE_CHECKING:
    from headrace.coordinators.group.shard import GroupShard

CLASSIC_MEMBER, CONSUMER_MEMBER = 0, 1  # KIP-1099


def describe(shard: GroupShard, group_id: str) -> ConsumerGroupDescribeResponse.DescribedGroup:
    """Return the description of a consumer group. Raise KafkaError (GROUP_ID_NOT_FOUND) if it does not exist."""
    group = shard.consumers.groups.committed(group_id)
    if group is None:
        raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} not found.")
    epochs, image = group.committed_epochs(), shard.image()
    return ConsumerGroupDescribeResponse.DescribedGroup(
        group_id=group_id,
        group_state=state_name(group),
        group_epoch=epochs.group,
        assignment_epoch=epochs.assignment,
        assignor_name=chosen_assignor(group, shard.settings, dict(group.votes.committed_items())),
        members=[_member(group, member, image) for _, member in sorted(group.members.committed_items(), key=_by_id)],
    )


def _by_id(pair: tuple[str, Member]) -> str:
    return pair[0]


def _member(group: ConsumerGroup, member: Member, image: Image) -> ConsumerGroupDescribeResponse.Member:
    target = group.targets.committed(member.member_id) or NO_PARTITIONS
    return ConsumerGroupDescribeResponse.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.names),
        subscribed_topic_regex=member.regex,
        assignment=_assignment(_held(member), image),
        target_assignment=_assignment(target, image),
        member_type=CONSUMER_MEMBER if member.classic is None else CLASSIC_MEMBER,
    )


def _held(member: Member) -> Mapping[Uuid, Iterable[int]]:
    """Return the partitions that the member has: its assignment, and those that it still has to revoke."""
    return {
        topic: [*member.assigned.get(topic, ()), *member.revoking.get(topic, ())]
        for topic in {**member.assigned, **member.revoking}
    }


def _assignment(owned: Mapping[Uuid, Iterable[int]], image: Image) -> ConsumerGroupDescribeResponse.Assignment:
    topics = [
        ConsumerGroupDescribeResponse.TopicPartitions(
            topic_id=topic_id, topic_name=image.topic_names[topic_id], partitions=sorted(owned[topic_id])
        )
        for topic_id in sorted(owned)
        if topic_id in image.topic_names
    ]
    return ConsumerGroupDescribeResponse.Assignment(topic_partitions=topics)

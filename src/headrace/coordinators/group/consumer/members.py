"""A member of a consumer group as a value: what it told of itself, how far it is, and what it may own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum

from msgspec import Struct

from headrace.base.ids import Uuid
from headrace.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from headrace.protocol.messages.stored.consumer_groups import (
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataValue,
)

JOINING = 0  # epochs of a heartbeat with a meaning of their own
LEAVING = -1
LEAVING_TO_RETURN = -2


class MemberState(IntEnum):
    """As the records number them."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


Owned = Mapping[
    Uuid, Mapping[int, int]
]  # topic → partition → the epoch it was assigned at (KIP-1251); never changed in place
NOTHING: Owned = {}

ClassicMember = ConsumerGroupMemberMetadataValue.ClassicMemberMetadata


class Member(Struct, frozen=True):
    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    names: tuple[str, ...] = ()  # subscribed to, ascending
    regex: str = ""  # none: ""
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicMember | None = None  # of a member that speaks the classic protocol
    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Owned = NOTHING
    revoking: Owned = NOTHING  # not its own any more, but it has not said so yet

    def is_reconciled(self, assignment_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == assignment_epoch


def names_told(told: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(dict.fromkeys(told)))


def owned_told(told: Sequence[ConsumerGroupHeartbeatRequest.TopicPartitions]) -> dict[Uuid, dict[int, None]]:
    owned: dict[Uuid, dict[int, None]] = {}
    for topic in told:
        owned.setdefault(Uuid(topic.topic_id), {}).update(dict.fromkeys(topic.partitions))
    return owned


def is_subset(told: Mapping[Uuid, Mapping[int, None]], assigned: Owned) -> bool:
    return all(
        topic in assigned and all(partition in assigned[topic] for partition in partitions)
        for topic, partitions in told.items()
    )


def same_partitions(left: Owned, right: Owned) -> bool:
    return left.keys() == right.keys() and all(left[topic].keys() == right[topic].keys() for topic in left)


# --- as records have it


def owned_read(topics: list[ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions], epoch: int) -> Owned:
    """Records of Kafka before 4.3 have no epochs of partitions: the member's stands for them."""
    owned: dict[Uuid, dict[int, int]] = {}
    for topic in topics:
        epochs = topic.assignment_epochs or [epoch] * len(topic.partitions)
        owned[Uuid(topic.topic_id)] = dict(zip(topic.partitions, epochs, strict=False))
    return owned


def owned_written(owned: Owned) -> list[ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions]:
    return [
        ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions(
            topic_id=topic,
            partitions=sorted(owned[topic]),
            assignment_epochs=[owned[topic][partition] for partition in sorted(owned[topic])],
        )
        for topic in sorted(owned)
    ]


def state_read(number: int) -> MemberState:
    try:
        return MemberState(number)
    except ValueError:
        return MemberState.UNKNOWN  # of a newer version: such a member begins again

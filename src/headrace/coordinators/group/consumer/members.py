"""A member of a consumer group as a value: its subscription, its epoch and state, and its partitions."""

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

JOINING = 0  # special epochs in a heartbeat
LEAVING = -1
LEAVING_TO_RETURN = -2


class MemberState(IntEnum):
    """Member states, numbered as in the records."""

    STABLE = 0
    UNREVOKED_PARTITIONS = 1
    UNRELEASED_PARTITIONS = 2
    UNKNOWN = 127


# Topic → partition → the epoch at which it was assigned (KIP-1251); never modified in place.
Owned = Mapping[Uuid, Mapping[int, int]]
NOTHING: Owned = {}

ClassicMember = ConsumerGroupMemberMetadataValue.ClassicMemberMetadata


class Member(Struct, frozen=True):
    member_id: str
    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    names: tuple[str, ...] = ()  # of subscribed topics, ascending
    regex: str = ""  # empty if it has none
    rebalance_timeout_ms: int = -1
    server_assignor: str | None = None
    classic: ClassicMember | None = None  # None unless it is a classic member
    epoch: int = 0
    previous_epoch: int = -1
    state: MemberState = MemberState.STABLE
    assigned: Owned = NOTHING
    revoking: Owned = NOTHING  # to be revoked; the member has not confirmed that it did

    def is_reconciled(self, assignment_epoch: int) -> bool:
        return self.state is MemberState.STABLE and self.epoch == assignment_epoch


def sorted_names(reported: Sequence[str]) -> tuple[str, ...]:
    return tuple(sorted(dict.fromkeys(reported)))


def reported_partitions(
    reported: Sequence[ConsumerGroupHeartbeatRequest.TopicPartitions],
) -> dict[Uuid, dict[int, None]]:
    owned: dict[Uuid, dict[int, None]] = {}
    for topic in reported:
        owned.setdefault(Uuid(topic.topic_id), {}).update(dict.fromkeys(topic.partitions))
    return owned


def is_subset(reported: Mapping[Uuid, Mapping[int, None]], assigned: Owned) -> bool:
    return all(
        topic in assigned and all(partition in assigned[topic] for partition in partitions)
        for topic, partitions in reported.items()
    )


def same_partitions(left: Owned, right: Owned) -> bool:
    return left.keys() == right.keys() and all(left[topic].keys() == right[topic].keys() for topic in left)


# --- records


def owned_read(topics: list[ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions], epoch: int) -> Owned:
    """Read partitions from a record. Kafka before 4.3 wrote no partition epochs: the member's epoch replaces them."""
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
        return MemberState.UNKNOWN  # written by a newer version; such a member has to rejoin

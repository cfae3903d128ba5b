"""The interface of assignors: their input and what they must do."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar, NamedTuple, Protocol

from headrace.base.ids import TopicPartition
from headrace.client.group.classic_protocol import Subscribed

Assignment = dict[str, list[TopicPartition]]  # partitions by member id, with an entry for every member


class Layout(NamedTuple):
    """The topics according to metadata; topics that do not exist are left out."""

    counts: Mapping[str, int]
    # racks of the brokers with a replica; brokers without a rack are left out
    racks: Mapping[TopicPartition, frozenset[str]] = {}


class Assignor(Protocol):
    name: ClassVar[str]  # name in the protocol
    cooperative: ClassVar[bool]

    def user_data(self, held: Collection[TopicPartition], generation: int) -> bytes | None:
        """Return what the leader's assignor needs to know about a member: what it held last, and since when."""
        ...

    def assign(self, layout: Layout, members: Mapping[str, Subscribed]) -> Assignment: ...


def in_order(members: Mapping[str, Subscribed]) -> list[str]:
    """Return the members in order, static ones first by instance id.

    A static member thus keeps its partitions, although its member id changes with each restart.
    """
    return sorted(members, key=lambda member: _sort_key(member, members[member].instance_id))


def _sort_key(member_id: str, instance_id: str | None) -> tuple[bool, str]:
    return (True, member_id) if instance_id is None else (False, instance_id)


def subscribers(layout: Layout, members: Mapping[str, Subscribed]) -> dict[str, list[str]]:
    """Return the subscribers of each existing topic that has any, ordered by `in_order`; topics are sorted by name."""
    found: dict[str, list[str]] = {topic: [] for topic in sorted(layout.counts)}
    for member in in_order(members):
        for topic in members[member].topics:
            if topic in found:
                found[topic].append(member)
    return {topic: some for topic, some in found.items() if some}

"""What an assignor is told, and what it must do."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar, NamedTuple, Protocol

from headrace.base.ids import TopicPartition
from headrace.client.classic_protocol import Subscribed

Assignment = dict[str, list[TopicPartition]]  # by member id; everybody is in it


class Layout(NamedTuple):
    """The topics as metadata tells them; those that do not exist are left out."""

    counts: Mapping[str, int]
    racks: Mapping[
        TopicPartition, frozenset[str]
    ] = {}  # of the brokers that have a replica; racks without a name left out


class Assignor(Protocol):
    name: ClassVar[str]  # on the wire
    cooperative: ClassVar[bool]

    def user_data(self, held: Collection[TopicPartition], generation: int) -> bytes | None:
        """What the leader's assignor wants to know of a member: what it had last, and since when."""
        ...

    def assign(self, layout: Layout, members: Mapping[str, Subscribed]) -> Assignment: ...


def in_order(members: Mapping[str, Subscribed]) -> list[str]:
    """Static members first, by their instance ids: so each gets what it had, whatever its member id is this time."""
    return sorted(members, key=lambda member: _place(member, members[member].instance_id))


def _place(member_id: str, instance_id: str | None) -> tuple[bool, str]:
    return (True, member_id) if instance_id is None else (False, instance_id)


def subscribers(layout: Layout, members: Mapping[str, Subscribed]) -> dict[str, list[str]]:
    """Of each topic that exists and that somebody wants, in the order of `in_order`; topics in theirs."""
    found: dict[str, list[str]] = {topic: [] for topic in sorted(layout.counts)}
    for member in in_order(members):
        for topic in members[member].topics:
            if topic in found:
                found[topic].append(member)
    return {topic: some for topic, some in found.items() if some}

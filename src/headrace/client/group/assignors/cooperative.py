"""Sticky assignment in two rebalances (KIP-429): what moves is first revoked, then assigned; the rest stays in use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import ClassVar

from headrace.base.ids import TopicPartition
from headrace.client.group.assignors.balance import balance, valid_holders
from headrace.client.group.assignors.spec import Assignment, Layout
from headrace.client.group.classic_protocol import Subscribed, decode_generation, encode_generation
from headrace.client.group.membership import NO_GENERATION


class CooperativeStickyAssignor:
    name: ClassVar[str] = "cooperative-sticky"
    cooperative: ClassVar[bool] = True

    def user_data(self, held: Collection[TopicPartition], generation: int) -> bytes | None:
        return encode_generation(generation)

    def assign(self, layout: Layout, members: Mapping[str, Subscribed]) -> Assignment:
        claims = {member: (subscribed.owned, _generation(subscribed)) for member, subscribed in members.items()}
        holders = valid_holders(claims)
        claimants: dict[TopicPartition, set[str]] = defaultdict(set)
        for member, subscribed in members.items():
            for partition in subscribed.owned:
                claimants[partition].add(member)
        target = balance(layout, members, holders)
        return {
            member: [
                partition
                for partition in partitions
                if holders.get(partition) == member
                or not claimants.get(partition)  # else a member may still be reading it
            ]
            for member, partitions in target.items()
        }


def _generation(subscribed: Subscribed) -> int:
    """Return the member's generation; before subscription version 2 it is in the user data."""
    return subscribed.generation if subscribed.generation != NO_GENERATION else decode_generation(subscribed.user_data)

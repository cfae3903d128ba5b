"""Assigns evenly with as few moves as possible. Eager: members revoke all partitions before they rejoin, and report them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar

from headrace.base.ids import TopicPartition
from headrace.client.group.assignors.balance import balance, valid_holders
from headrace.client.group.assignors.spec import Assignment, Layout
from headrace.client.group.classic_protocol import Subscribed, decode_sticky_data, encode_sticky_data


class StickyAssignor:
    name: ClassVar[str] = "sticky"
    cooperative: ClassVar[bool] = False

    def user_data(self, held: Collection[TopicPartition], generation: int) -> bytes | None:
        return encode_sticky_data(held, generation) if held else None

    def assign(self, layout: Layout, members: Mapping[str, Subscribed]) -> Assignment:
        claims = {member: decode_sticky_data(subscribed.user_data) for member, subscribed in members.items()}
        return balance(layout, members, valid_holders(claims))

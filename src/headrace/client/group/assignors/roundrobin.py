"""Assigns partitions in turn to the members that subscribe to their topic."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar

from headrace.base.ids import TopicPartition
from headrace.client.group.assignors.spec import Assignment, Layout, in_order, subscribers
from headrace.client.group.classic_protocol import Subscribed


class RoundRobinAssignor:
    name: ClassVar[str] = "roundrobin"
    cooperative: ClassVar[bool] = False

    def user_data(self, held: Collection[TopicPartition], generation: int) -> bytes | None:
        return None

    def assign(self, layout: Layout, members: Mapping[str, Subscribed]) -> Assignment:
        assignment: Assignment = {member: [] for member in members}
        order, turn = in_order(members), 0
        for topic in subscribers(layout, members):
            for index in range(layout.counts[topic]):
                while topic not in members[order[turn]].topics:
                    turn = (turn + 1) % len(order)
                assignment[order[turn]].append(TopicPartition(topic, index))
                turn = (turn + 1) % len(order)
        return assignment

"""Assigns each topic in even ranges; members get the same partition numbers of topics of equal size.

With racks (KIP-881), a member first gets partitions with a replica in its own rack, as long as the ranges stay even.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import groupby, islice
from typing import ClassVar

from headrace.base.ids import TopicPartition
from headrace.client.group.assignors.spec import Assignment, Layout, subscribers
from headrace.client.group.classic_protocol import Subscribed


class RangeAssignor:
    name: ClassVar[str] = "range"
    cooperative: ClassVar[bool] = False

    def user_data(self, held: Collection[TopicPartition], generation: int) -> bytes | None:
        return None

    def assign(self, layout: Layout, members: Mapping[str, Subscribed]) -> Assignment:
        racks = {member: subscribed.rack for member, subscribed in members.items() if subscribed.rack is not None}
        pieces = [
            _Pieces(topic, layout, wanting, racks)
            for topic, wanting in subscribers(layout, members).items()
            if layout.counts[topic] > 0
        ]
        if any(topic.racks_matter for topic in pieces):
            _match_racks(pieces)
        assignment: Assignment = {member: [] for member in members}
        for topic in pieces:
            topic.cut(lambda member, index: True)
            for member, given in topic.given.items():
                assignment[member] += [TopicPartition(topic.name, index) for index in sorted(given)]
        return assignment


class _Pieces:
    """One topic, being divided among its members."""

    def __init__(self, name: str, layout: Layout, members: list[str], racks: Mapping[str, str]) -> None:
        self.name = name
        self.count = layout.counts[name]
        self.members = members
        self.given: dict[str, list[int]] = {member: [] for member in members}
        self._left = dict.fromkeys(range(self.count))
        self._least, self._larger_left = divmod(self.count, len(members))
        self._rack_of = {member: racks[member] for member in members if member in racks}
        self._racks = [layout.racks.get(TopicPartition(name, index), frozenset()) for index in range(self.count)]
        self.racks_matter = self._do_racks_matter()

    def _do_racks_matter(self) -> bool:
        """Return whether racks make a difference: not if every partition is in every rack."""
        all_racks = frozenset().union(*self._racks)
        if all_racks.isdisjoint(self._rack_of.values()):
            return False
        return any(racks != all_racks for racks in self._racks)

    @property
    def alike(self) -> tuple[tuple[tuple[str, str | None], ...], int]:
        """Return a key; topics with equal keys are divided together."""
        return tuple((member, self._rack_of.get(member)) for member in self.members), self.count

    @property
    def has_racks(self) -> bool:
        return bool(self._rack_of)

    def in_rack(self, member: str, index: int) -> bool:
        rack = self._rack_of.get(member)
        return rack is None or rack in self._racks[index]

    def space_left(self, member: str) -> int:
        return max(0, self._least + (self._larger_left > 0) - len(self.given[member]))

    def give(self, member: str, indexes: Iterable[int]) -> None:
        for index in indexes:
            del self._left[index]
            self.given[member].append(index)
        if len(self.given[member]) > self._least:
            self._larger_left -= 1

    def cut(self, may_have: Callable[[str, int], bool]) -> None:
        for member in self.members:
            fit = (index for index in self._left if may_have(member, index))
            some = list(islice(fit, self.space_left(member)))
            if some:
                self.give(member, some)


def _match_racks(pieces: list[_Pieces]) -> None:
    sortable = sorted((topic for topic in pieces if topic.has_racks), key=lambda topic: repr(topic.alike))
    for _, alike in groupby(sortable, key=lambda topic: topic.alike):
        topics = list(alike)
        if len(topics) > 1:
            _match_racks_together(topics)
        elif topics[0].racks_matter:
            topics[0].cut(topics[0].in_rack)


def _match_racks_together(topics: list[_Pieces]) -> None:
    """Give partition n of all topics to the first member with capacity and a replica of each in its rack."""
    for index in range(topics[0].count):
        for member in topics[0].members:
            if all(topic.space_left(member) > 0 and topic.in_rack(member, index) for topic in topics):
                for topic in topics:
                    topic.give(member, [index])
                break

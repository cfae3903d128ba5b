"""The `uniform` assignor, which gives members equal numbers of partitions and moves as few as possible.

Members keep their partitions of topics that they are still subscribed to; the rest goes to the members with the fewest. If all members
are subscribed to the same topics, their numbers of partitions differ by at most one. Otherwise no member has two more than another that
could take one of them. Partitions only move to improve the balance, so a balanced assignment is returned unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heapreplace

from headrace.base.ids import Uuid
from headrace.coordinators.group.assignors.spec import Assignment, MemberSpec

_Partitions = dict[Uuid, list[int]]


def assign_uniform(members: Sequence[MemberSpec], partitions: Mapping[Uuid, int]) -> dict[str, Assignment]:
    ordered = sorted(members, key=lambda member: member.member_id)
    if not ordered:
        return {}
    kept, free = _keep(ordered, partitions)
    if all(member.topics == ordered[0].topics for member in ordered):
        _share_equally(kept, free)
    else:
        _Balance(ordered, kept).settle(free)
    return {
        member_id: {topic: tuple(sorted(indexes)) for topic, indexes in sorted(had.items()) if indexes}
        for member_id, had in kept.items()
    }


def _keep(members: Sequence[MemberSpec], partitions: Mapping[Uuid, int]) -> tuple[dict[str, _Partitions], _Partitions]:
    """Return what each member can keep of its last target, and the partitions without an owner."""
    subscribed_topics: dict[Uuid, None] = {}
    for member in members:
        subscribed_topics |= dict.fromkeys(member.topics)
    taken = {topic: bytearray(partitions[topic]) for topic in sorted(subscribed_topics)}
    sets: dict[tuple[Uuid, ...], frozenset[Uuid]] = {}  # few distinct subscriptions, many members
    kept: dict[str, _Partitions] = {}
    for member in members:
        mine: _Partitions = {}
        kept[member.member_id] = mine
        subscribed = sets.get(member.topics)
        if subscribed is None:
            subscribed = sets[member.topics] = frozenset(member.topics)
        for topic, indexes in member.target.items():
            if topic not in subscribed:
                continue
            marks = taken[topic]
            still = [index for index in indexes if index < len(marks) and not marks[index]]
            for index in still:
                marks[index] = 1
            if still:
                mine[topic] = still
    free = {topic: [index for index, mark in enumerate(marks) if not mark] for topic, marks in taken.items()}
    return kept, free


def _share_equally(kept: dict[str, _Partitions], free: _Partitions) -> None:
    """Distribute partitions over members with equal subscriptions, so that all sizes are known in advance.

    Members that are above the share already are the first to keep an extra partition.
    """
    sizes = {member_id: sum(map(len, had.values())) for member_id, had in kept.items()}
    total = sum(sizes.values()) + sum(map(len, free.values()))
    share, extra = divmod(total, len(kept))
    left = [(topic, index) for topic, indexes in free.items() for index in indexes]
    unfilled: list[tuple[str, int]] = []
    for member_id, had in kept.items():
        surplus = sizes[member_id] - share
        if surplus > 0 and extra:
            extra, surplus = extra - 1, surplus - 1
        elif surplus <= 0:
            unfilled.append((member_id, -surplus))
        if surplus > 0:
            left += _give_back(had, surplus)
    left.sort(reverse=True)
    for member_id, missing in unfilled:
        if extra:
            extra, missing = extra - 1, missing + 1
        had = kept[member_id]
        for _ in range(missing):
            topic, index = left.pop()
            had.setdefault(topic, []).append(index)


def _give_back(had: _Partitions, count: int) -> list[tuple[Uuid, int]]:
    given: list[tuple[Uuid, int]] = []
    for topic in sorted(had, reverse=True):
        while had[topic] and len(given) < count:
            given.append((topic, had[topic].pop()))
    return given


class _Balance:
    """Balances partitions over members with different subscriptions.

    Topics with the same subscribers form a class: only the number of a class's partitions per member matters.
    """

    def __init__(self, members: Sequence[MemberSpec], kept: dict[str, _Partitions]) -> None:
        self._kept = kept
        self._sizes = {member_id: sum(map(len, had.values())) for member_id, had in kept.items()}
        subscribers: dict[Uuid, list[str]] = {}
        for member in members:
            for topic in member.topics:
                subscribers.setdefault(topic, []).append(member.member_id)
        self._classes: dict[tuple[str, ...], list[Uuid]] = {}
        for topic in sorted(subscribers):
            self._classes.setdefault(tuple(subscribers[topic]), []).append(topic)
        self._fresh: dict[str, _Partitions] = {
            member_id: {} for member_id in kept
        }  # the part of `_kept` that is new to them

    def settle(self, free: _Partitions) -> None:
        # Classes with the fewest subscribers come first: the others can compensate for them.
        for takers, topics in sorted(self._classes.items(), key=lambda pair: (len(pair[0]), pair[0])):
            self._hand_out(takers, topics, free)
        classes = [pair for pair in self._classes.items() if len(pair[0]) > 1]
        moved = True
        while moved:
            moved = False
            for takers, topics in classes:
                moved |= self._even_out(takers, topics)

    def _hand_out(self, takers: tuple[str, ...], topics: list[Uuid], free: _Partitions) -> None:
        heap = [(self._sizes[taker], taker) for taker in takers]
        heapify(heap)
        for topic in topics:
            for index in free[topic]:
                size, taker = heap[0]
                heapreplace(heap, (size + 1, taker))
                self._sizes[taker] = size + 1
                self._kept[taker].setdefault(topic, []).append(index)
                self._fresh[taker].setdefault(topic, []).append(index)

    def _even_out(self, takers: tuple[str, ...], topics: list[Uuid]) -> bool:
        """Move partitions of this class from the largest to the smallest members while that improves the balance."""
        sizes, moved = self._sizes, False
        least = min(map(sizes.__getitem__, takers))
        givers = [
            taker
            for taker in takers
            if sizes[taker] - least >= 2 and any(self._kept[taker].get(topic) for topic in topics)
        ]
        while givers:
            giver = max(givers, key=sizes.__getitem__)
            taker = min(takers, key=sizes.__getitem__)
            if sizes[giver] - sizes[taker] < 2:
                break
            if self._move(giver, taker, topics):
                moved = True
            else:
                givers.remove(giver)
        return moved

    def _move(self, giver: str, taker: str, topics: list[Uuid]) -> bool:
        """Move one partition, preferably one that is new to the giver; return False if there is none."""
        for had in (self._fresh[giver], self._kept[giver]):
            for topic in topics:
                if had.get(topic):
                    index = had[topic][-1]
                    self._kept[giver][topic].remove(index)
                    if index in self._fresh[giver].get(topic, ()):
                        self._fresh[giver][topic].remove(index)
                    self._kept[taker].setdefault(topic, []).append(index)
                    self._fresh[taker].setdefault(topic, []).append(index)
                    self._sizes[giver] -= 1
                    self._sizes[taker] += 1
                    return True
        return False

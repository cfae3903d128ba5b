"""An even assignment that moves few partitions: the basis of both sticky assignors.

Members keep what they had, partitions without a holder go to the least loaded member, and then partitions move, one at
a time, to members that have at least two fewer. Each move reduces the sum of the squares, so this ends; and nothing
moves that balance does not require.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush

from headrace.base.ids import TopicPartition
from headrace.client.group.assignors.spec import Assignment, Layout, subscribers
from headrace.client.group.classic_protocol import Subscribed

Readers = tuple[str, ...]  # members that subscribe to a topic; topics with the same members share one object
Holders = dict[TopicPartition, str]
ToGive = dict[Readers, list[TopicPartition]]


def valid_holders(claims: Mapping[str, tuple[Iterable[TopicPartition], int]]) -> Holders:
    """Return the last holder of each partition, according to the members' claims and generations.

    A partition that two members claim in its newest generation has no holder.
    """
    newest: dict[TopicPartition, tuple[int, str | None]] = {}
    for member, (partitions, generation) in claims.items():
        for partition in dict.fromkeys(partitions):
            known = newest.get(partition)
            if known is None or generation > known[0]:
                newest[partition] = generation, member
            elif generation == known[0]:
                newest[partition] = generation, None
    return {partition: member for partition, (_, member) in newest.items() if member is not None}


def balance(layout: Layout, members: Mapping[str, Subscribed], holders: Holders) -> Assignment:
    return _Balance(layout, members).run(holders)


class _Balance:
    def __init__(self, layout: Layout, members: Mapping[str, Subscribed]) -> None:
        self._held: dict[str, dict[TopicPartition, None]] = {member: {} for member in members}
        same: dict[Readers, Readers] = {}
        self._readers: dict[str, Readers] = {}
        for topic, some in subscribers(layout, members).items():
            readers = tuple(sorted(some))
            self._readers[topic] = same.setdefault(readers, readers)
        self._counts = layout.counts
        # Heaps of loads by readers, least first. An outdated entry is discarded when it comes to the top.
        self._loads: dict[Readers, list[tuple[int, str]]] = {readers: [] for readers in same}
        self._loads_of: dict[str, list[list[tuple[int, str]]]] = {member: [] for member in members}
        for readers, heap in self._loads.items():
            for member in readers:
                self._loads_of[member].append(heap)

    def run(self, holders: Holders) -> Assignment:
        left = self._keep(holders)
        for readers, heap in self._loads.items():
            heap += [(len(self._held[member]), member) for member in readers]
            heapify(heap)
        left.sort(key=lambda partition: (len(self._readers[partition.topic]), partition))
        for partition in left:
            self._give(self._least_loaded(self._readers[partition.topic]), partition)
        self._even_out(holders)
        return {member: sorted(held) for member, held in self._held.items()}

    def _keep(self, holders: Holders) -> list[TopicPartition]:
        """Let members keep what they held; return the partitions left to assign."""
        left = []
        for topic, readers in self._readers.items():
            reading = set(readers)
            for partition in (TopicPartition(topic, index) for index in range(self._counts[topic])):
                holder = holders.get(partition)
                if holder is not None and holder in reading:
                    self._held[holder][partition] = None
                else:
                    left.append(partition)
        return left

    def _give(self, member: str, partition: TopicPartition) -> None:
        self._held[member][partition] = None
        self._push_load(member)

    def _push_load(self, member: str) -> None:
        entry = len(self._held[member]), member
        for heap in self._loads_of[member]:
            heappush(heap, entry)

    def _least_loaded(self, readers: Readers) -> str:
        heap = self._loads[readers]
        while heap[0][0] != len(self._held[heap[0][1]]):
            heappop(heap)
        return heap[0][1]

    def _even_out(self, holders: Holders) -> None:
        """Move partitions one at a time, always from the most loaded member.

        If a member gave away too many, the receiver would have to give them away again.
        """
        moving = True
        while moving:
            moving = False
            to_give = {member: self._to_give(member, holders) for member in self._held}
            most = [(-len(held), member) for member, held in self._held.items()]
            heapify(most)
            while most:
                load, giver = heappop(most)
                if -load != len(self._held[giver]):
                    continue
                taker = self._give_one(giver, to_give)
                if taker is not None:
                    moving = True
                    for member in (giver, taker):
                        heappush(most, (-len(self._held[member]), member))

    def _to_give(self, giver: str, holders: Holders) -> ToGive:
        """Return the partitions that other members subscribe to as well, by readers.

        The last of each list is given first: one that the giver did not hold before.
        """
        found: ToGive = {}
        for partition in sorted(self._held[giver], key=lambda one: (holders.get(one) != giver, one)):
            readers = self._readers[partition.topic]
            if len(readers) > 1:
                found.setdefault(readers, []).append(partition)
        return found

    def _give_one(self, giver: str, to_give: dict[str, ToGive]) -> str | None:
        """Give a partition to the least loaded member, if that has at least two fewer; return that member."""
        own = to_give[giver]
        if not own:
            return None
        readers = min(own, key=lambda some: len(self._held[self._least_loaded(some)]))
        taker = self._least_loaded(readers)
        if len(self._held[taker]) > len(self._held[giver]) - 2:
            return None
        partition = own[readers].pop()
        if not own[readers]:
            del own[readers]
        to_give[taker].setdefault(readers, []).append(partition)
        del self._held[giver][partition]
        self._push_load(giver)
        self._give(taker, partition)
        return taker

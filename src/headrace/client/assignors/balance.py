"""An even assignment that moves little: what both sticky assignors stand on.

Everybody keeps what it had, what nobody had goes to whoever has least, and then partitions move, one at a time, to members that have at
least two less. Each move makes the sum of the squares smaller, so there is an end; and nothing moves that balance does not ask for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush

from headrace.base.ids import TopicPartition
from headrace.client.assignors.spec import Assignment, Layout, subscribers
from headrace.client.classic_protocol import Subscribed

Readers = tuple[str, ...]  # members that want a topic; one and the same object for all topics that have the same
Holders = dict[TopicPartition, str]
ToGive = dict[Readers, list[TopicPartition]]


def valid_holders(claims: Mapping[str, tuple[Iterable[TopicPartition], int]]) -> Holders:
    """Who had a partition last, by what members claim in which generation; nobody, if two claim it in one."""
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
        # By readers: how much each has, the least first. An entry that is no longer true is thrown away when it comes up.
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
        """What remains to be given out."""
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
        self._tell_load(member)

    def _tell_load(self, member: str) -> None:
        entry = len(self._held[member]), member
        for heap in self._loads_of[member]:
            heappush(heap, entry)

    def _least_loaded(self, readers: Readers) -> str:
        heap = self._loads[readers]
        while heap[0][0] != len(self._held[heap[0][1]]):
            heappop(heap)
        return heap[0][1]

    def _even_out(self, holders: Holders) -> None:
        """Whoever has most gives first, one at a time: what it gives too much, another would have to give again."""
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
        """What others want too; what goes first is last: that which the giver did not have before."""
        found: ToGive = {}
        for partition in sorted(self._held[giver], key=lambda one: (holders.get(one) != giver, one)):
            readers = self._readers[partition.topic]
            if len(readers) > 1:
                found.setdefault(readers, []).append(partition)
        return found

    def _give_one(self, giver: str, to_give: dict[str, ToGive]) -> str | None:
        """To whoever has least, if that is at least two less."""
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
        self._tell_load(giver)
        self._give(taker, partition)
        return taker

"""Maps events to offsets and offsets to records.

Only the generator and the bells write to the topics, without transactions, so an offset is the number of records before it. A partition
of clicks has the clicks of all days with a bell after each day; a partition of orders has only orders.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from headrace.base.ids import TopicPartition
from headrace.demo.shop.events import (
    PARTITIONS,
    Click,
    Order,
    bell,
    click,
    clicks_among,
    event_of_click,
    event_of_order,
    order,
    orders_among,
)
from headrace.demo.shop.topics import CLICKS, ORDERS

CLICK_PLACES = tuple(TopicPartition(CLICKS, index) for index in range(PARTITIONS))
ORDER_PLACES = tuple(TopicPartition(ORDERS, index) for index in range(PARTITIONS))
PLACES = CLICK_PLACES + ORDER_PLACES


class Frontier(NamedTuple):
    """How far the topics are filled: with all events below `low` and none from `high` on. They differ after a kill."""

    low: int
    high: int


class Layout:
    def __init__(self, closings: Sequence[int]) -> None:
        """Create the layout for a shop that closed after these numbers of events, in ascending order."""
        assert all(one < other for one, other in itertools.pairwise(closings)), closings
        self.closings = tuple(closings)
        self._bells = {
            place: [_share(clicks_among(events), place.partition) + number for number, events in enumerate(closings)]
            for place in CLICK_PLACES
        }

    def offset(self, place: TopicPartition, index: int) -> int:
        """Return the offset of a click or order, given its number in its partition."""
        if place.topic == ORDERS:
            return index
        bells = self._bells[place]
        # The offset of a bell is (clicks before it) + (bells before it).
        return index + sum(1 for number, offset in enumerate(bells) if offset - number <= index)

    def record(self, place: TopicPartition, offset: int) -> Click | Order:
        if place.topic == ORDERS:
            return order(offset * PARTITIONS + place.partition, self.closings)
        bells = self._bells[place]
        before = bisect_left(bells, offset)
        if before < len(bells) and bells[before] == offset:
            return bell(before, self.closings)
        return click((offset - before) * PARTITIONS + place.partition, self.closings)

    def ends(self, events: int) -> dict[TopicPartition, int]:
        """Return the log ends of all partitions after `events` events and all bells up to then."""
        ends = {place: _share(orders_among(events), place.partition) for place in ORDER_PLACES}
        for place in CLICK_PLACES:
            bells = sum(1 for closing in self.closings if closing <= events)
            ends[place] = _share(clicks_among(events), place.partition) + bells
        return ends

    def frontier(self, ends: Mapping[TopicPartition, int]) -> Frontier:
        low, high = [], [0]
        for place in PLACES:
            index = ends[place] - (bisect_left(self._bells[place], ends[place]) if place.topic == CLICKS else 0)
            low.append(_event(place, index))
            if index:
                high.append(_event(place, index - 1) + 1)
        return Frontier(min(low), max(high))

    def missing_bells(self, ends: Mapping[TopicPartition, int]) -> list[tuple[TopicPartition, Click]]:
        """Return the bell of each partition whose next record must be a bell of a recorded closing."""
        return [
            (place, bell(self._bells[place].index(ends[place]), self.closings))
            for place in CLICK_PLACES
            if ends[place] in self._bells[place]
        ]

    def missing(self, start: int, end: int, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, range]:
        """Return the offsets of those events in `range(start, end)` that are not yet written."""
        wanted: dict[TopicPartition, range] = {}
        for place in PLACES:
            indexes = _indexes(place, start, end)
            if not indexes:
                continue
            offsets = range(max(ends[place], self.offset(place, indexes[0])), self.offset(place, indexes[-1]) + 1)
            if offsets:
                wanted[place] = offsets
        return wanted

    def clicks(self, events: int) -> Iterator[Click]:
        return (click(number, self.closings) for number in range(clicks_among(events)))

    def orders(self, events: int) -> Iterator[Order]:
        return (order(number, self.closings) for number in range(orders_among(events)))


def closings_of(values: Iterable[int]) -> list[int]:
    """Return the closings in the values of their topic, without duplicates."""
    closings: list[int] = []
    for value in values:
        if not closings or value > closings[-1]:
            closings.append(value)
    return closings


def _share(records: int, partition: int) -> int:
    """Return how many of the first `records` clicks or orders are in this partition."""
    return (records - partition + PARTITIONS - 1) // PARTITIONS


def _event(place: TopicPartition, index: int) -> int:
    number = index * PARTITIONS + place.partition
    return event_of_order(number) if place.topic == ORDERS else event_of_click(number)


def _indexes(place: TopicPartition, start: int, end: int) -> range:
    among = orders_among if place.topic == ORDERS else clicks_among
    return range(_share(among(start), place.partition), _share(among(end), place.partition))

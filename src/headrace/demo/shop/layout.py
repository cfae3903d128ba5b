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

CLICK_PARTITIONS = tuple(TopicPartition(CLICKS, index) for index in range(PARTITIONS))
ORDER_PARTITIONS = tuple(TopicPartition(ORDERS, index) for index in range(PARTITIONS))
EVENT_PARTITIONS = CLICK_PARTITIONS + ORDER_PARTITIONS


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
            partition: [
                _share(clicks_among(events), partition.partition) + number for number, events in enumerate(closings)
            ]
            for partition in CLICK_PARTITIONS
        }

    def offset(self, partition: TopicPartition, index: int) -> int:
        """Return the offset of a click or order, given its number in its partition."""
        if partition.topic == ORDERS:
            return index
        bells = self._bells[partition]
        # The offset of a bell is (clicks before it) + (bells before it).
        return index + sum(1 for number, offset in enumerate(bells) if offset - number <= index)

    def record(self, partition: TopicPartition, offset: int) -> Click | Order:
        if partition.topic == ORDERS:
            return order(offset * PARTITIONS + partition.partition, self.closings)
        bells = self._bells[partition]
        before = bisect_left(bells, offset)
        if before < len(bells) and bells[before] == offset:
            return bell(before, self.closings)
        return click((offset - before) * PARTITIONS + partition.partition, self.closings)

    def ends(self, events: int) -> dict[TopicPartition, int]:
        """Return the log ends of all partitions after `events` events and all bells up to then."""
        ends = {partition: _share(orders_among(events), partition.partition) for partition in ORDER_PARTITIONS}
        for partition in CLICK_PARTITIONS:
            bells = sum(1 for closing in self.closings if closing <= events)
            ends[partition] = _share(clicks_among(events), partition.partition) + bells
        return ends

    def frontier(self, ends: Mapping[TopicPartition, int]) -> Frontier:
        low, high = [], [0]
        for partition in EVENT_PARTITIONS:
            index = ends[partition] - (
                bisect_left(self._bells[partition], ends[partition]) if partition.topic == CLICKS else 0
            )
            low.append(_event(partition, index))
            if index:
                high.append(_event(partition, index - 1) + 1)
        return Frontier(min(low), max(high))

    def missing_bells(self, ends: Mapping[TopicPartition, int]) -> list[tuple[TopicPartition, Click]]:
        """Return the bell of each partition whose next record must be a bell of a recorded closing."""
        return [
            (partition, bell(self._bells[partition].index(ends[partition]), self.closings))
            for partition in CLICK_PARTITIONS
            if ends[partition] in self._bells[partition]
        ]

    def missing(self, start: int, end: int, ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, range]:
        """Return the offsets of those events in `range(start, end)` that are not yet written."""
        ranges: dict[TopicPartition, range] = {}
        for partition in EVENT_PARTITIONS:
            indexes = _indexes(partition, start, end)
            if not indexes:
                continue
            offsets = range(
                max(ends[partition], self.offset(partition, indexes[0])), self.offset(partition, indexes[-1]) + 1
            )
            if offsets:
                ranges[partition] = offsets
        return ranges

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


def _event(partition: TopicPartition, index: int) -> int:
    number = index * PARTITIONS + partition.partition
    return event_of_order(number) if partition.topic == ORDERS else event_of_click(number)


def _indexes(partition: TopicPartition, start: int, end: int) -> range:
    among = orders_among if partition.topic == ORDERS else clicks_among
    return range(_share(among(start), partition.partition), _share(among(end), partition.partition))

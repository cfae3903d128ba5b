"""How far a run is, by what is on disk alone: topics, closings and checkpoints. So a run that was killed anywhere, by the next one, is
where it was; and one that ends by itself ends for good.

Windows close when the watermark passes them, so the end of a bounded run is a small play: all events are there; all are read; only then a
bell tells in each partition that it is much later (read before an event of another partition, it would make that one too late for its
window); the windows close; what they gave is put away.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from typing import NamedTuple

from headrace.base.ids import TopicPartition
from headrace.demo.checkpoints import NOWHERE, Position
from headrace.demo.events import bell
from headrace.demo.layout import CLICK_PLACES, ORDER_PLACES, Layout
from headrace.demo.results import PATIENCE_MS, RESULTS, Result

SHOP, TABLES = "shop", "tables"


class Query(NamedTuple):
    """One stream of a pipeline, named as its sink."""

    pipeline: str
    result: Result

    @property
    def name(self) -> str:
        return f"{self.pipeline}.{self.result.name}"


QUERIES = tuple(Query(pipeline, result) for pipeline in (SHOP, TABLES) for result in RESULTS)


class Stage(Enum):
    """In their order; the value says what is under way."""

    EVENTS = "events happen"
    READING = "events are worked on"
    CLOSING = "the shop closes"
    WINDOWS = "the last windows close"
    STORING = "the last results go to Parquet"
    DONE = "all is done"


class Facts(NamedTuple):
    layout: Layout
    ends: Mapping[TopicPartition, int]  # of the topics that are read; of results, as far as they are committed
    positions: Mapping[str, Position]  # of queries, by name
    open: Collection[TopicPartition] = ()  # those of results in which a transaction is open: more may become visible


def goal(events: int, facts: Facts) -> int:
    """How many events there are to be in all: what there is already counts."""
    return max(events, facts.layout.frontier(facts.ends).high)


def stage(events: int, facts: Facts) -> Stage:
    """Of a run that is to end at so many events."""
    wanted = goal(events, facts)
    if facts.layout.frontier(facts.ends).low < wanted:
        return Stage.EVENTS
    if wanted not in facts.layout.closings:
        return Stage.CLOSING if all(lag(one, facts) == 0 for one in QUERIES if one.pipeline == SHOP) else Stage.READING
    if facts.layout.missing_bells(facts.ends):
        return Stage.CLOSING
    bell_ms = bell(len(facts.layout.closings) - 1, facts.layout.closings).at_ms
    for query in QUERIES:
        if query.pipeline == SHOP and (
            lag(query, facts) > 0
            or (query.result.is_windowed and _position(query, facts).watermark_ms < bell_ms - PATIENCE_MS)
        ):
            return Stage.WINDOWS
    if facts.open:
        return Stage.WINDOWS
    if any(lag(query, facts) > 0 for query in QUERIES):
        return Stage.STORING
    return Stage.DONE


def lag(query: Query, facts: Facts) -> int:
    """Offsets that it has still to read of what it reads."""
    offsets = _position(query, facts).offsets
    return sum(
        max(0, end - offsets.get(place, 0)) for place, end in facts.ends.items() if place.topic == topic_of(query)
    )


def topic_of(query: Query) -> str:
    """What it reads."""
    if query.pipeline == TABLES:
        return query.result.topic
    return (CLICK_PLACES if query.result.is_windowed else ORDER_PLACES)[0].topic


def _position(query: Query, facts: Facts) -> Position:
    return facts.positions.get(query.name, NOWHERE)

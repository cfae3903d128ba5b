"""Determines how far a run is, only from what is on disk: topics, closings and checkpoints.

A killed run therefore continues where it was, and a completed run stays complete.

Windows close when the watermark passes them, so a bounded run ends in steps: all events are written; all are read; a bell in each
partition advances the watermark; the windows close; their results are stored as Parquet. The bells come only after all events are read:
a bell that is read before an event of another partition would make that event too late for its window.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import Enum
from typing import NamedTuple

from headrace.base.ids import TopicPartition
from headrace.demo.results.checkpoints import NOWHERE, Position
from headrace.demo.results.expected import PATIENCE_MS, RESULTS, Result
from headrace.demo.shop.events import bell
from headrace.demo.shop.layout import CLICK_PARTITIONS, ORDER_PARTITIONS, Layout

SHOP, TABLES = "shop", "tables"


class Query(NamedTuple):
    """One query of a pipeline, named after its sink."""

    pipeline: str
    result: Result

    @property
    def name(self) -> str:
        return f"{self.pipeline}.{self.result.name}"


QUERIES = tuple(Query(pipeline, result) for pipeline in (SHOP, TABLES) for result in RESULTS)


class Stage(Enum):
    """The stages of a run in their order; the values are shown to the user."""

    EVENTS = "events happen"
    READING = "processing events"
    CLOSING = "the shop closes"
    WINDOWS = "the last windows close"
    STORING = "the last results go to Parquet"
    DONE = "all is done"


class Facts(NamedTuple):
    layout: Layout
    ends: Mapping[TopicPartition, int]  # log ends of the input topics; last stable offsets of the result topics
    positions: Mapping[str, Position]  # positions of the queries, by name
    open: Collection[TopicPartition] = ()  # result partitions with an open transaction: more rows may become visible


def goal(events: int, facts: Facts) -> int:
    """Return the total number of events that a run must reach, at least as many as there already are."""
    return max(events, facts.layout.frontier(facts.ends).high)


def stage(events: int, facts: Facts) -> Stage:
    """Return the stage of a run that ends after `events` events."""
    target = goal(events, facts)
    if facts.layout.frontier(facts.ends).low < target:
        return Stage.EVENTS
    if target not in facts.layout.closings:
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
    """Return the number of offsets that the query has not yet read."""
    offsets = _position(query, facts).offsets
    return sum(
        max(0, end - offsets.get(partition, 0))
        for partition, end in facts.ends.items()
        if partition.topic == topic_of(query)
    )


def topic_of(query: Query) -> str:
    """Return the topic that the query reads."""
    if query.pipeline == TABLES:
        return query.result.topic
    return (CLICK_PARTITIONS if query.result.is_windowed else ORDER_PARTITIONS)[0].topic


def _position(query: Query, facts: Facts) -> Position:
    return facts.positions.get(query.name, NOWHERE)

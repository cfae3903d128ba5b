"""Conditions on topic, partition, offset and time that are met by reading less. Pure.

All but those on time are met entirely. Times of records need not ascend: what lies before the first record of a time can be left out, but
nothing can be said of what comes after it; so Spark looks at those again.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from headrace.base.ids import TopicPartition
from headrace.pipelines.planning import Range

OFFSET_MAX = 2**63 - 1
# What is added to the value, and whether it then is the end (else the beginning).
_OFFSETS = {
    "GreaterThan": (1, False),
    "GreaterThanOrEqual": (0, False),
    "LessThan": (0, True),
    "LessThanOrEqual": (1, True),
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Pushed(Struct, frozen=True):
    """Only rows that fit all of it are wanted."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    low: int = 0  # the first offset
    high: int = OFFSET_MAX  # and the one after the last
    since_ms: int | None = None

    def wants(self, partition: TopicPartition) -> bool:
        if self.topics is not None and partition.topic not in self.topics:
            return False
        return self.partitions is None or partition.partition in self.partitions

    def cut(self, one: Range) -> Range:
        return Range(one.partition, max(one.start, self.low), min(one.end, self.high))


def push(pushed: Pushed, kind: str, column: str, value: Any) -> tuple[Pushed, bool]:
    """With one condition more, of the names of pyspark.sql.datasource; and whether it needs no second look."""
    if kind == "IsNotNull":
        return pushed, column in ("topic", "partition", "offset", "timestamp")
    if kind in ("EqualTo", "EqualNullSafe"):
        kind, value = "In", (value,)
    if kind == "In" and column in ("topic", "partition"):
        return _one_of(pushed, column, value)
    if kind == "In" and column == "offset":
        wanted = [one for one in value if type(one) is int]
        if len(wanted) != 1 or len(value) != 1:
            return pushed, False
        return _between(pushed, wanted[0], wanted[0] + 1), True
    if column == "offset" and type(value) is int and kind in _OFFSETS:
        after, is_upper = _OFFSETS[kind]
        low, high = (0, value + after) if is_upper else (value + after, OFFSET_MAX)
        return _between(pushed, low, high), True
    if column == "timestamp":
        return _since(pushed, kind, value), False
    return pushed, False


def _one_of(pushed: Pushed, column: str, values: Collection[Any]) -> tuple[Pushed, bool]:
    if column == "topic":
        topics = frozenset(value for value in values if isinstance(value, str))
        return replace(pushed, topics=topics if pushed.topics is None else pushed.topics & topics), True
    indexes = frozenset(value for value in values if type(value) is int)
    return replace(pushed, partitions=indexes if pushed.partitions is None else pushed.partitions & indexes), True


def _between(pushed: Pushed, low: int, high: int) -> Pushed:
    return replace(pushed, low=max(pushed.low, low), high=min(pushed.high, high))


def _since(pushed: Pushed, kind: str, value: Any) -> Pushed:
    if kind == "In":
        value, kind = value[0] if len(value) == 1 else None, "GreaterThanOrEqual"
    if kind not in ("GreaterThan", "GreaterThanOrEqual") or not isinstance(value, datetime):
        return pushed
    since = _floor_ms(value)
    return replace(pushed, since_ms=since if pushed.since_ms is None else max(pushed.since_ms, since))


def _floor_ms(value: datetime) -> int:
    # Without a zone it may be of any: nowhere is it more than a day later than there.
    at = value.replace(tzinfo=UTC) - timedelta(days=1) if value.tzinfo is None else value
    return (at - _EPOCH) // timedelta(milliseconds=1)

"""Pushed-down filters on topic, partition, offset and timestamp, which reduce what is read. Does no I/O.

All except those on timestamps are fully handled here. Timestamps of records need not ascend: records before the first one with the
timestamp can be skipped, but later ones may still be older, so Spark must evaluate timestamp filters again.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from headrace.base.ids import TopicPartition
from headrace.pipelines.source.planning import Range

OFFSET_MAX = 2**63 - 1
# Filter name: what to add to the value, and whether the result is the exclusive upper bound (else the lower bound).
_OFFSETS = {
    "GreaterThan": (1, False),
    "GreaterThanOrEqual": (0, False),
    "LessThan": (0, True),
    "LessThanOrEqual": (1, True),
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Pushed(Struct, frozen=True):
    """Restrictions of a read; a row must meet all of them."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    low: int = 0  # first offset
    high: int = OFFSET_MAX  # offset after the last
    since_ms: int | None = None

    def includes(self, partition: TopicPartition) -> bool:
        if self.topics is not None and partition.topic not in self.topics:
            return False
        return self.partitions is None or partition.partition in self.partitions

    def cut(self, one: Range) -> Range:
        return Range(one.partition, max(one.start, self.low), min(one.end, self.high))


def push(pushed: Pushed, kind: str, column: str, value: Any) -> tuple[Pushed, bool]:
    """Add a filter, named as in pyspark.sql.datasource; return the result and whether the filter is fully handled."""
    if kind == "IsNotNull":
        return pushed, column in ("topic", "partition", "offset", "timestamp")
    if kind in ("EqualTo", "EqualNullSafe"):
        kind, value = "In", (value,)
    if kind == "In" and column in ("topic", "partition"):
        return _one_of(pushed, column, value)
    if kind == "In" and column == "offset":
        offsets = [one for one in value if type(one) is int]
        if len(offsets) != 1 or len(value) != 1:
            return pushed, False
        return _between(pushed, offsets[0], offsets[0] + 1), True
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
    # A datetime without a time zone may be in any zone; no zone is more than a day ahead of UTC.
    at = value.replace(tzinfo=UTC) - timedelta(days=1) if value.tzinfo is None else value
    return (at - _EPOCH) // timedelta(milliseconds=1)

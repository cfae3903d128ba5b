"""Pushing filters down to the source, which then reads less."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from headrace.base.ids import TopicPartition
from headrace.pipelines.source.planning import Range
from headrace.pipelines.source.pushed_filters import OFFSET_MAX, Pushed, push


def pushed(*conditions: Any) -> tuple[Pushed, list[bool]]:
    found = Pushed()
    met: list[bool] = []
    for condition in conditions:
        found, is_met = push(found, *condition)
        met.append(is_met)
    return found, met


def test_topic_and_partition_filters_are_pushed_down() -> None:
    found, met = pushed(("In", "topic", ("a", "b")), ("EqualTo", "topic", "b"), ("EqualNullSafe", "partition", 1))
    assert met == [True, True, True]
    assert found.includes(TopicPartition("b", 1))
    assert not any(found.includes(TopicPartition(*one)) for one in [("a", 1), ("b", 0), ("c", 1)])
    assert not pushed(("EqualNullSafe", "topic", None))[0].includes(TopicPartition("a", 0))


@pytest.mark.parametrize(
    ("kind", "value", "low", "high"),
    [
        ("GreaterThan", 5, 6, OFFSET_MAX),
        ("GreaterThanOrEqual", 5, 5, OFFSET_MAX),
        ("LessThan", 5, 0, 5),
        ("LessThanOrEqual", 5, 0, 6),
        ("EqualTo", 5, 5, 6),
        ("In", (5,), 5, 6),
    ],
)
def test_offset_comparisons_become_offset_ranges(kind: str, value: tuple[int, ...] | int, low: int, high: int) -> None:
    found, met = pushed((kind, "offset", value))
    assert (found.low, found.high, met) == (low, high, [True])


def test_several_offset_conditions_are_intersected() -> None:
    found, _ = pushed(("GreaterThan", "offset", 5), ("LessThanOrEqual", "offset", 9), ("GreaterThan", "offset", 2))
    here = TopicPartition("a", 0)
    assert found.cut(Range(here, 0, 100)) == Range(here, 6, 10)
    assert found.cut(Range(here, 8, 9)) == Range(here, 8, 9)
    assert found.cut(Range(here, 50, 60)).size < 0


def test_timestamp_filters_set_the_start_and_are_rechecked_by_spark() -> None:
    at = datetime(2026, 1, 1, 12, 0, 0, 1500, tzinfo=UTC)
    ms = 1767268800001
    assert pushed(("GreaterThan", "timestamp", at)) == (Pushed(since_ms=ms), [False])
    later = pushed(("GreaterThanOrEqual", "timestamp", at), ("EqualTo", "timestamp", at + timedelta(seconds=1)))
    assert later == (Pushed(since_ms=ms + 1000), [False, False])
    elsewhere = at.astimezone(timezone(timedelta(hours=5)))
    assert pushed(("GreaterThan", "timestamp", elsewhere))[0].since_ms == ms


def test_a_timestamp_without_a_zone_starts_a_day_earlier() -> None:
    assert pushed(("GreaterThan", "timestamp", datetime(1970, 1, 3)))[0].since_ms == 86_400_000


@pytest.mark.parametrize(
    "condition",
    [
        ("LessThan", "timestamp", datetime(2026, 1, 1, tzinfo=UTC)),
        ("EqualTo", "key", b"x"),
        ("In", "offset", (1, 2)),
        ("GreaterThan", "partition", 1),
        ("StringStartsWith", "topic", "a"),
        ("IsNotNull", "key", None),
        ("Not", "offset", None),
    ],
)
def test_unsupported_conditions_are_left_to_spark(condition: tuple[str, str, Any]) -> None:
    assert pushed(condition) == (Pushed(), [False])


def test_is_not_null_on_a_column_without_nulls_is_always_met() -> None:
    assert pushed(("IsNotNull", "offset", None)) == (Pushed(), [True])

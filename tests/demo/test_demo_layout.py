"""The offset of each record, compared with a list that is written event by event."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.ids import TopicPartition
from headrace.demo.shop import events
from headrace.demo.shop.events import PARTITIONS, Click, Order
from headrace.demo.shop.layout import CLICK_PARTITIONS, EVENT_PARTITIONS, ORDER_PARTITIONS, Layout, closings_of

EVENTS_MAX = 300
CLOSINGS = st.lists(st.integers(0, EVENTS_MAX), max_size=4, unique=True).map(sorted)


def written(count: int, closings: list[int]) -> dict[TopicPartition, list[Click | Order]]:
    """Write the logs event by event, without using offsets."""
    logs: dict[TopicPartition, list[Click | Order]] = {partition: [] for partition in EVENT_PARTITIONS}
    clicks = orders = 0
    for event in range(count + 1):
        if event in closings:
            for partition in CLICK_PARTITIONS:
                logs[partition].append(events.bell(closings.index(event), closings))
        if event == count:
            break
        if event % events.ORDER_EVERY == events.CLICKS_OF_TEN:
            logs[ORDER_PARTITIONS[orders % PARTITIONS]].append(events.order(orders, closings))
            orders += 1
        else:
            logs[CLICK_PARTITIONS[clicks % PARTITIONS]].append(events.click(clicks, closings))
            clicks += 1
    return logs


@given(st.integers(0, EVENTS_MAX), CLOSINGS)
@settings(deadline=None, max_examples=60)
def test_layout_offsets_match_a_log_written_event_by_event(count: int, closings: list[int]) -> None:
    layout = Layout(closings)
    logs = written(count, closings)
    assert layout.ends(count) == {partition: len(log) for partition, log in logs.items()}
    for partition, log in logs.items():
        assert [layout.record(partition, offset) for offset in range(len(log))] == log
    assert layout.frontier(layout.ends(count)).high == count


@given(st.integers(0, EVENTS_MAX), CLOSINGS, st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=60)
def test_a_killed_generator_resumes_where_the_logs_end(
    count: int, closings: list[int], random_source: random.Random
) -> None:
    """Each partition may end anywhere, as its batches are written independently of the others."""
    closings = [one for one in closings if one < count]
    layout, logs = Layout(closings), written(count, closings)
    # No partition enters a new day before all have finished the old one.
    since = closings[-1] if closings else 0
    first = layout.ends(since)
    ends = {partition: random_source.randint(first[partition], len(log)) for partition, log in logs.items()}
    low, high = layout.frontier(ends)
    assert since <= low <= count and high <= count
    found = {partition: log[: ends[partition]] for partition, log in logs.items()}
    for start in range(low, count, 7):
        for partition, offsets in layout.missing(start, min(start + 7, count), ends).items():
            assert offsets.start == len(found[partition])
            found[partition] += [layout.record(partition, offset) for offset in offsets]
    assert found == logs


@given(st.integers(1, EVENTS_MAX))
@settings(deadline=None, max_examples=30)
def test_each_closing_adds_one_bell_to_every_click_partition(count: int) -> None:
    before = Layout([]).ends(count)
    layout = Layout([count])
    assert layout.ends(count) == {partition: end + (partition in CLICK_PARTITIONS) for partition, end in before.items()}
    one, *others = missing = layout.missing_bells(before)
    assert [partition for partition, _ in missing] == list(CLICK_PARTITIONS)
    assert layout.missing_bells({**before, one[0]: before[one[0]] + 1}) == others
    assert layout.missing_bells(layout.ends(count)) == []


def test_repeated_closings_count_once() -> None:
    assert closings_of([100, 100, 250, 100, 300]) == [100, 250, 300]

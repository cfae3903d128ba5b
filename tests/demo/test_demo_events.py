"""Events by number: reproducible, and suitable for windows and sessions."""

from __future__ import annotations

import itertools
import json
from collections import Counter, defaultdict
from datetime import datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.demo.shop import events
from headrace.demo.shop.events import BREAK_MS, CUSTOMERS, LATE_MS_MAX, OPENS_MS, PARTITIONS, STEP_MS

NUMBERS = st.integers(0, 10**9)


def test_each_event_is_a_click_or_an_order() -> None:
    many = 1000
    clicks = [events.event_of_click(number) for number in range(events.clicks_among(many))]
    orders = [events.event_of_order(number) for number in range(events.orders_among(many))]
    assert sorted(clicks + orders) == list(range(many))


def test_events_are_identical_in_every_version() -> None:
    """A topic that was begun by another version must be continued by this one."""
    assert events.click(12_345, ()) == (2453, "search", 1767258137160)
    assert events.order(12_345, ()) == (12345, 1047, "scarf", 12554, 1767259234590)
    assert events.customer(1999) == (1999, "Hugo Eriksen", "Turin")


@given(NUMBERS)
@settings(deadline=None, max_examples=50)
def test_event_values_are_json_of_the_fields(number: int) -> None:
    order = events.order(number, ())
    decoded = json.loads(order.value)
    at = datetime.fromisoformat(decoded.pop("at")).timestamp()
    assert tuple(decoded.values()) == order[:-1] and round(at * 1000) == order.at_ms
    click = events.click(number, ())
    decoded = json.loads(click.value)
    assert (decoded["visitor"], decoded["page"]) == (click.visitor, click.page)
    assert click.key == str(click.visitor).encode()


def test_customers_have_unique_keys_and_json_values() -> None:
    customers = [events.customer(number) for number in range(CUSTOMERS)]
    assert [json.loads(one.value) for one in customers] == [one._asdict() for one in customers]
    assert len({one.key for one in customers}) == CUSTOMERS


@given(NUMBERS)
@settings(deadline=None, max_examples=50)
def test_visitors_and_customers_stay_in_their_partition(number: int) -> None:
    visitor = events.click(number, ()).visitor
    assert visitor is not None and visitor % PARTITIONS == number % PARTITIONS
    order = events.order(number, ())
    assert order.customer % PARTITIONS == number % PARTITIONS and order.customer < CUSTOMERS


@given(st.integers(0, 10_000))
@settings(deadline=None, max_examples=50)
def test_event_times_follow_the_event_number_within_the_lateness_limit(number: int) -> None:
    on_time = OPENS_MS + events.event_of_click(number) * STEP_MS
    assert on_time - LATE_MS_MAX < events.click(number, ()).at_ms <= on_time


@given(st.lists(st.integers(0, 500), max_size=4, unique=True).map(sorted))
@settings(deadline=None, max_examples=50)
def test_the_time_of_a_bell_is_between_two_days(closings: list[int]) -> None:
    times = [events.time_of(event, closings) for event in range(501)]
    for number, closing in enumerate(closings):
        bell = events.bell(number, closings).at_ms
        assert all(at + BREAK_MS // 2 <= bell for at in times[:closing])
        assert all(at - LATE_MS_MAX > bell for at in times[closing:])


def test_a_bell_has_no_visitor() -> None:
    bell = events.bell(0, [100])
    assert bell.key == b"bell" and json.loads(bell.value)["visitor"] is None


def test_clicks_form_sessions_of_five_to_ten_clicks() -> None:
    """Clicks come in short bursts, separated by more than the sessions' gap (30 s)."""
    times: defaultdict[int, list[int]] = defaultdict(list)
    for number in range(40_000):
        click = events.click(number, ())
        times[click.visitor].append(click.at_ms)
    gaps: Counter[Any] = Counter()
    for some in times.values():
        some.sort()
        gaps.update("long" if after - before > 30_000 else "short" for before, after in itertools.pairwise(some))
    assert len(times) == events.VISITORS
    clicks_a_session = gaps["short"] / (gaps["long"] + len(times)) + 1
    assert 5 < clicks_a_session < 10


def test_every_page_gets_clicks_and_home_more_than_help() -> None:
    pages = Counter(events.click(number, ()).page for number in range(10_000))
    assert set(pages) == set(events.PAGES)
    assert pages["home"] > 3 * pages["help"]

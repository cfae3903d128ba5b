"""Computes the expected rows of the three results, and how often each must occur, without the pipelines.

The parameters of shop.yaml are repeated here and nowhere else: a window of one minute, a session gap of 30 seconds, and a watermark delay
of one minute.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from headrace.demo.shop.events import customer
from headrace.demo.shop.layout import Layout
from headrace.demo.shop.topics import ENRICHED_ORDERS, PAGE_VIEWS, SESSIONS

WINDOW_MS = 60_000
GAP_MS = 30_000
PATIENCE_MS = 60_000


class PageViews(NamedTuple):
    minute_ms: int
    page: str
    clicks: int


class Session(NamedTuple):
    visitor: int
    first_ms: int
    last_ms: int
    clicks: int


class EnrichedOrder(NamedTuple):
    id: int
    customer: int
    name: str
    city: str
    product: str
    cents: int
    at_ms: int


Row = PageViews | Session | EnrichedOrder
Rows = Counter[Row]


# --- actual rows, from JSON values of a topic, where times are text, or from Parquet, where they are datetimes


def _ms(time: str | datetime) -> int:
    at = datetime.fromisoformat(time) if isinstance(time, str) else time
    if at.tzinfo is None:  # Spark's older Parquet timestamps are UTC without a time zone
        at = at.replace(tzinfo=UTC)
    return round(at.timestamp() * 1000)


def page_views_row(found: Mapping[str, Any]) -> Row:
    return PageViews(_ms(found["minute"]), found["page"], found["clicks"])


def session_row(found: Mapping[str, Any]) -> Row:
    return Session(found["visitor"], _ms(found["first_click"]), _ms(found["last_click"]), found["clicks"])


def enriched_order_row(found: Mapping[str, Any]) -> Row:
    names = ("id", "customer", "name", "city", "product", "cents")
    return EnrichedOrder(**{name: found[name] for name in names}, at_ms=_ms(found["at"]))


# --- expected rows of the first `events` events, after which the shop has closed


def expected_page_views(layout: Layout, events: int) -> Rows:
    counts = Counter((click.at_ms - click.at_ms % WINDOW_MS, click.page) for click in layout.clicks(events))
    return Counter(PageViews(minute_ms, page, clicks) for (minute_ms, page), clicks in counts.items())


def expected_sessions(layout: Layout, events: int) -> Rows:
    times: dict[int, array[int]] = defaultdict(lambda: array("q"))
    for click in layout.clicks(events):
        assert click.visitor is not None
        times[click.visitor].append(click.at_ms)
    return Counter(session for visitor, some in times.items() for session in sessions_of(visitor, sorted(some)))


def sessions_of(visitor: int, times: list[int]) -> list[Session]:
    """Split sorted click times into sessions; clicks exactly GAP_MS apart are in the same session."""
    found = [[times[0]]]
    for time in times[1:]:
        if time - found[-1][-1] > GAP_MS:
            found.append([])
        found[-1].append(time)
    return [Session(visitor, some[0], some[-1], len(some)) for some in found]


def expected_enriched_orders(layout: Layout, events: int) -> Rows:
    rows: Rows = Counter()
    for order in layout.orders(events):
        who = customer(order.customer)
        rows[EnrichedOrder(order.id, who.id, who.name, who.city, order.product, order.cents, order.at_ms)] += 1
    return rows


class Result(NamedTuple):
    """One of the three results; its Parquet table and its queries have the same name."""

    name: str
    topic: str
    row: Callable[[Mapping[str, Any]], Row]
    wanted: Callable[[Layout, int], Rows]
    is_windowed: bool  # True if computed from clicks in windows; False if from orders, without delay


RESULTS = (
    Result("page_views", PAGE_VIEWS, page_views_row, expected_page_views, True),
    Result("sessions", SESSIONS, session_row, expected_sessions, True),
    Result("enriched_orders", ENRICHED_ORDERS, enriched_order_row, expected_enriched_orders, False),
)

"""The events of the shop.

Every event is a function of its number. A killed generator therefore continues where the topics end, without duplicates, and the expected
results of any number of events can be computed.

Events are numbered from 0. Every tenth is an order, the others are clicks; clicks and orders are also numbered separately. The shop's clock
advances by STEP_MS per event and stands still while there are none. When the shop closes (at the end of a bounded run), the clock
jumps ahead by BREAK_MS, so that a bell in the middle of the break can close all windows of the day.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

PARTITIONS = 2  # partitions of the topics of clicks, orders and results
OPENS_MS = 1_767_258_000_000  # 1 January 2026, 09:00 UTC
STEP_MS = 10
ORDER_EVERY = 10
CLICKS_OF_TEN = ORDER_EVERY - 1
LATE_MS_MAX = 5_000  # a click's timestamp lies less than this behind those of clicks written before it
BREAK_MS = 600_000

CUSTOMERS = 2_000
VISITORS_AT_ONCE = 640
VISIT_CLICKS = 8  # average clicks per visit
VISITS = 4  # groups of visitors that take turns, so that a visitor returns only long after the last visit
VISITORS = VISITORS_AT_ONCE * VISITS
PAGES = ("home", "search", "shoes", "shirts", "bags", "watches", "sale", "basket", "account", "help")
PRODUCTS = ("boots", "sneakers", "sandals", "shirt", "scarf", "backpack", "wallet", "watch", "umbrella", "hat")
FIRST_NAMES = ("Ada", "Ben", "Chloé", "Dora", "Emil", "Femi", "Grace", "Hugo", "Ines", "Jun", "Kim", "Lena", "Max")
LAST_NAMES = ("Abebe", "Brandt", "Costa", "Dubois", "Eriksen", "Fuchs", "García", "Haddad", "Ito", "Jansen", "Kovács")
CITIES = ("Basel", "Porto", "Lagos", "Turin", "Osaka", "Leeds", "Graz")

_CLICKS, _ORDERS, _CUSTOMERS = 1, 2, 3
_BITS = (1 << 64) - 1
_MS_PER_S = 1000


class Click(NamedTuple):
    """A click of a visitor, or without a visitor the bell that advances the watermark while the shop is closed."""

    visitor: int | None
    page: str
    at_ms: int

    @property
    def key(self) -> bytes:
        return b"bell" if self.visitor is None else b"%d" % self.visitor

    @property
    def value(self) -> bytes:
        visitor = "null" if self.visitor is None else self.visitor
        return f'{{"visitor":{visitor},"page":"{self.page}","at":"{time_text(self.at_ms)}"}}'.encode()


class Order(NamedTuple):
    id: int
    customer: int
    product: str
    cents: int
    at_ms: int

    @property
    def key(self) -> bytes:
        return b"%d" % self.customer

    @property
    def value(self) -> bytes:
        return (
            f'{{"id":{self.id},"customer":{self.customer},"product":"{self.product}","cents":{self.cents},'
            f'"at":"{time_text(self.at_ms)}"}}'
        ).encode()


class Customer(NamedTuple):
    id: int
    name: str
    city: str

    @property
    def key(self) -> bytes:
        return b"%d" % self.id

    @property
    def value(self) -> bytes:
        return f'{{"id":{self.id},"name":"{self.name}","city":"{self.city}"}}'.encode()


def _mixed(kind: int, number: int) -> int:
    """Return 64 pseudo-random bits that depend only on the arguments."""
    bits = (number * 0x9E3779B97F4A7C15 + kind * 0xBF58476D1CE4E5B9) & _BITS
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _BITS
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _BITS
    return bits ^ (bits >> 31)


# --- numbers


def clicks_among(events: int) -> int:
    """Return the number of clicks among the first `events` events."""
    return events - events // ORDER_EVERY


def orders_among(events: int) -> int:
    return events // ORDER_EVERY


def event_of_click(number: int) -> int:
    return number + number // CLICKS_OF_TEN


def event_of_order(number: int) -> int:
    return number * ORDER_EVERY + CLICKS_OF_TEN


# --- contents


def time_of(event: int, closings: Sequence[int]) -> int:
    """Return the time of an event on the shop's clock in ms; `closings` are the numbers of events at each closing."""
    return OPENS_MS + event * STEP_MS + bisect_right(closings, event) * BREAK_MS


def click(number: int, closings: Sequence[int]) -> Click:
    """Return a click by its number.

    A visitor's clicks are all in one partition and form visits: about eight within a minute, then none for some minutes.
    """
    mixed = _mixed(_CLICKS, number)
    slot = mixed % (VISITORS_AT_ONCE // PARTITIONS) * PARTITIONS + number % PARTITIONS
    # Visits start at different times: each slot is a little ahead of the one before.
    turn = (number + slot * VISIT_CLICKS) // (VISITORS_AT_ONCE * VISIT_CLICKS)
    liking = mixed >> 16 & 1023
    late_ms = (mixed >> 40) % LATE_MS_MAX if mixed >> 32 & 7 == 0 else 0
    return Click(
        turn % VISITS * VISITORS_AT_ONCE + slot,
        PAGES[len(PAGES) * liking * liking >> 20],
        time_of(event_of_click(number), closings) - late_ms,
    )


def bell(closing: int, closings: Sequence[int]) -> Click:
    """Return the bell of a closing, counted from 0: later than all windows before it, earlier than all later events."""
    return Click(None, "", OPENS_MS + closings[closing] * STEP_MS + closing * BREAK_MS + BREAK_MS // 2)


def order(number: int, closings: Sequence[int]) -> Order:
    mixed = _mixed(_ORDERS, number)
    return Order(
        number,
        mixed % (CUSTOMERS // PARTITIONS) * PARTITIONS + number % PARTITIONS,
        PRODUCTS[(mixed >> 16) % len(PRODUCTS)],
        199 + (mixed >> 32) % 20_000,
        time_of(event_of_order(number), closings),
    )


def customer(number: int) -> Customer:
    mixed = _mixed(_CUSTOMERS, number)
    first, last = FIRST_NAMES[mixed % len(FIRST_NAMES)], LAST_NAMES[(mixed >> 16) % len(LAST_NAMES)]
    return Customer(number, f"{first} {last}", CITIES[(mixed >> 32) % len(CITIES)])


def time_text(time_ms: int) -> str:
    seconds, rest_ms = divmod(time_ms, _MS_PER_S)
    return f"{_second_text(seconds)}.{rest_ms:03d}Z"


@lru_cache(maxsize=64)  # events written together fall into few different seconds
def _second_text(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")

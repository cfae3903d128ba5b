"""What happens in the shop. Every event is a function of its number: whoever was killed goes on where the topics end, and nothing is
doubled; and whoever wants to know what must have come out of a million events works it out.

Events are numbered from 0. Every tenth is an order, the others are clicks; both are numbered besides among their own kind. The shop has a
clock of its own, which moves by STEP_MS an event. It stands still while nothing happens, and when the shop closes (the end of a bounded
run) it goes on BREAK_MS later, so that all windows of the day can be closed by a bell in the middle of the break.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple

PARTITIONS = 2  # of the topics of clicks and of orders
OPENS_MS = 1_767_258_000_000  # the first of January 2026 at nine
STEP_MS = 10
ORDER_EVERY = 10
CLICKS_OF_TEN = ORDER_EVERY - 1
LATE_MS_MAX = 5_000  # some clicks are noted later than others that came after them
BREAK_MS = 600_000

CUSTOMERS = 2_000
VISITORS_AT_ONCE = 640
VISIT_CLICKS = 8  # on average
VISITS = 4  # turns in which the visitors come: those of each have left for long before it is theirs again
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
    """Without visitor: the bell that tells the time while the shop is closed."""

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
    """64 bits that look like chance, and are the same each time."""
    bits = (number * 0x9E3779B97F4A7C15 + kind * 0xBF58476D1CE4E5B9) & _BITS
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & _BITS
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & _BITS
    return bits ^ (bits >> 31)


# --- numbers


def clicks_among(events: int) -> int:
    """Of the first so many events."""
    return events - events // ORDER_EVERY


def orders_among(events: int) -> int:
    return events // ORDER_EVERY


def event_of_click(number: int) -> int:
    return number + number // CLICKS_OF_TEN


def event_of_order(number: int) -> int:
    return number * ORDER_EVERY + CLICKS_OF_TEN


# --- what they are


def time_of(event: int, closings: Sequence[int]) -> int:
    """On the shop's clock, ms; it closed after so many events, each time."""
    return OPENS_MS + event * STEP_MS + bisect_right(closings, event) * BREAK_MS


def click(number: int, closings: Sequence[int]) -> Click:
    """A visitor's clicks are all in one partition, and are a visit: about eight within a minute, then none for some minutes."""
    chance = _mixed(_CLICKS, number)
    place = chance % (VISITORS_AT_ONCE // PARTITIONS) * PARTITIONS + number % PARTITIONS
    # All come and go at moments of their own: each place counts its turns a little ahead of the one before.
    turn = (number + place * VISIT_CLICKS) // (VISITORS_AT_ONCE * VISIT_CLICKS)
    liking = chance >> 16 & 1023
    late_ms = (chance >> 40) % LATE_MS_MAX if chance >> 32 & 7 == 0 else 0
    return Click(
        turn % VISITS * VISITORS_AT_ONCE + place,
        PAGES[len(PAGES) * liking * liking >> 20],
        time_of(event_of_click(number), closings) - late_ms,
    )


def bell(closing: int, closings: Sequence[int]) -> Click:
    """The one of this closing, counted from 0: later than every window of before, earlier than all that comes after."""
    return Click(None, "", OPENS_MS + closings[closing] * STEP_MS + closing * BREAK_MS + BREAK_MS // 2)


def order(number: int, closings: Sequence[int]) -> Order:
    chance = _mixed(_ORDERS, number)
    return Order(
        number,
        chance % (CUSTOMERS // PARTITIONS) * PARTITIONS + number % PARTITIONS,
        PRODUCTS[(chance >> 16) % len(PRODUCTS)],
        199 + (chance >> 32) % 20_000,
        time_of(event_of_order(number), closings),
    )


def customer(number: int) -> Customer:
    chance = _mixed(_CUSTOMERS, number)
    first, last = FIRST_NAMES[chance % len(FIRST_NAMES)], LAST_NAMES[(chance >> 16) % len(LAST_NAMES)]
    return Customer(number, f"{first} {last}", CITIES[(chance >> 32) % len(CITIES)])


def time_text(time_ms: int) -> str:
    seconds, rest_ms = divmod(time_ms, _MS_PER_S)
    return f"{_second_text(seconds)}.{rest_ms:03d}Z"


@lru_cache(maxsize=64)  # events of a moment have few of them
def _second_text(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")

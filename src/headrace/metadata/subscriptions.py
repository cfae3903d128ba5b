"""Client-metrics subscriptions (KIP-714): which clients push which metrics, and how often."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.patterns import BadPattern, Pattern
from headrace.options.resource_options import CLIENT_METRICS_OPTIONS, METRICS_SELECTORS

ALL_METRICS = "*"
# Patterns that no engine accepts are refused with Kafka's message alone. Otherwise RE2's reason is added, because
# java.util.regex may accept the pattern.
MALFORMED = ("missing ", "unexpected ", "trailing ", "no argument ")


class Subscription(Struct, frozen=True):
    metrics: tuple[str, ...]  # prefixes of metric names
    interval_ms: int
    match: Mapping[str, Pattern]  # by selector; a client must match all of them

    def includes(self, client: Mapping[str, tuple[str, ...]]) -> bool:
        """Return whether a client matches all patterns.

        `client` has the known values of each selector, in each spelling. An unknown value matches nothing.
        """
        return all(any(map(pattern.matches, client.get(selector, ()))) for selector, pattern in self.match.items())


def read_subscription(configs: Mapping[str, str]) -> Subscription:
    """Parse the options of a client-metrics resource. Raise KafkaError INVALID_CONFIG with Kafka's message."""
    interval = configs.get("interval.ms", str(CLIENT_METRICS_OPTIONS["interval.ms"].default))
    try:
        interval_ms = int(interval)
    except ValueError:
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"interval.ms={interval} is not a number") from None
    return Subscription(tuple(_items(configs, "metrics")), interval_ms, _patterns(_items(configs, "match")))


def _patterns(items: list[str]) -> dict[str, Pattern]:
    """Parse patterns as Kafka does: one `=` per item, the last of repeated selectors wins, no comma in a pattern."""
    patterns = {}
    for item in items:
        parts = item.split("=")
        while parts and not parts[-1]:
            parts.pop()
        if len(parts) != 2 or parts[0].strip() not in METRICS_SELECTORS:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Illegal client matching pattern: {item}")
        try:
            patterns[parts[0].strip()] = Pattern(parts[1].strip())
        except BadPattern as error:
            why = "" if str(error).startswith(MALFORMED) else f" ({error})"
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"Illegal client matching pattern: {item}{why}") from None
    return patterns


def _items(configs: Mapping[str, str], name: str) -> list[str]:
    text = configs.get(name, "").strip()
    items = [item.strip() for item in text.split(",")] if text else []
    if not all(items):
        raise KafkaError(ErrorCode.INVALID_CONFIG, f"Configuration '{name}' values must not be empty.")
    return items

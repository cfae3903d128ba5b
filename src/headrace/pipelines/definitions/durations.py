"""Durations as Spark writes them (`10 seconds`) and as people write them (`10s`)."""

from __future__ import annotations

import re

_LONG = {
    "us": "microseconds",
    "ms": "milliseconds",
    "s": "seconds",
    "sec": "seconds",
    "m": "minutes",
    "min": "minutes",
    "h": "hours",
    "d": "days",
}
_UNITS = ("microsecond", "millisecond", "second", "minute", "hour", "day", "week")
_PART = re.compile(r"\s*([0-9]{1,12})\s*([A-Za-z]+)\s*")
EXPECTED = "a span of time such as 10 seconds, 500 milliseconds or 1 hour 30 minutes"


def duration(text: str) -> str | None:
    """Return the duration in Spark's format, or None if the text is not a duration."""
    parts: list[str] = []
    at = 0
    text = text.strip()
    while at < len(text):
        found = _PART.match(text, at)
        if found is None:
            return None
        unit = found[2].lower()
        unit = _LONG.get(unit, unit)
        if unit.removesuffix("s") not in _UNITS:
            return None
        parts.append(f"{int(found[1])} {unit}")
        at = found.end()
    return " ".join(parts) or None

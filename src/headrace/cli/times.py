"""Parses times in options: an ISO time, milliseconds since 1970, or a duration before now."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from headrace.base.errors import ConfigError
from headrace.client.consumer.options import duration_ms


def parse_moment(option: str, text: str) -> int:
    """Return milliseconds since 1970. A time without a zone is UTC.

    The result is never negative, because negative times have special meanings in requests.
    """
    if text.isdecimal() and len(text) < 18:
        return int(text)
    if text.startswith("P"):
        return before_now(option, text)
    try:
        return parse_datetime(option, text)
    except ConfigError:
        raise ConfigError(
            f"{option} {text!r}: expected a time such as 2026-07-01T12:00:00Z, milliseconds since 1970, or a duration such as PT30M"
        ) from None


def parse_datetime(option: str, text: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(f"{option} {text!r}: expected a time such as 2026-07-01T12:00:00") from None
    return max(0, int((moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp() * 1000))


def before_now(option: str, text: str) -> int:
    try:
        length_ms = duration_ms(text)
    except ValueError:
        raise ConfigError(f"{option} {text!r}: expected PnDTnHnMnS, such as P1DT6H or PT30M") from None
    return max(0, int(time.time() * 1000) - length_ms)

"""Checks the arguments of `send` before anything is queued, so that a caller's mistake is raised at the call."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.records.record import Headers

TIMESTAMP_MS_MAX = 2**63 - 1


def check_record(
    topic: object,
    value: object,
    key: object,
    partition: object,
    timestamp_ms: object,
    headers: Iterable[object],
) -> Headers:
    """Return the headers as a tuple; raise TypeError or ValueError naming the argument that cannot be sent."""
    if type(topic) is not str:
        raise TypeError(f"topic must be a str, not {type(topic).__name__}")
    if value is not None and type(value) is not bytes:
        _check_bytes("value", value)
    if key is not None and type(key) is not bytes:
        _check_bytes("key", key)
    if partition is not None:
        _check_number("partition", partition, 2**31 - 1)
    if timestamp_ms is not None:
        _check_number("timestamp_ms", timestamp_ms, TIMESTAMP_MS_MAX)
    return tuple(_header(header) for header in headers) if headers else ()


def _check_bytes(name: str, given: object) -> None:
    if isinstance(given, str):
        raise TypeError(f"{name} must be bytes or None, not str: encode it, for example with {name}.encode()")
    if not isinstance(given, bytes):
        raise TypeError(f"{name} must be bytes or None, not {type(given).__name__}")


def _check_number(name: str, given: object, most: int) -> None:
    if not isinstance(given, int) or isinstance(given, bool):
        raise TypeError(f"{name} must be an int or None, not {type(given).__name__}")
    if not 0 <= given <= most:
        raise ValueError(f"{name} must be between 0 and {most}, not {given}")


def _header(header: object) -> tuple[str, bytes | None]:
    if not isinstance(header, tuple | list) or len(header) != 2:
        raise TypeError(f"headers must be pairs of a name and bytes or None, not {header!r:.100}")
    name, content = header
    if not isinstance(name, str):
        raise TypeError(f"the name of a header must be a str, not {type(name).__name__}")
    if content is not None:
        _check_bytes(f"header {name!r:.100}", content)
    return name, content

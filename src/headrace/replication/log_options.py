"""The options that apply to a topic's logs: the topic's value, else the broker's, else Kafka's default."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.base.errors import ConfigError
from headrace.options.table import Value
from headrace.options.topic_options import TOPIC_OPTIONS
from headrace.storage.log_config import LogConfig

# Computed once: getting the fields from msgspec takes a millisecond, and there may be ten thousand logs to open.
_FIELDS = [
    (field.name, name)
    for field in msgspec.structs.fields(LogConfig)
    if (name := field.name.replace("_", ".")) in TOPIC_OPTIONS
]


def effective_options(defaults: Mapping[str, Value], own: Mapping[str, str]) -> dict[str, Value]:
    """Return the defaults, overridden by the topic's options.

    An option that cannot be parsed (written by another version) counts as not set: a topic must open with any stored options.
    """
    values = dict(defaults)
    for name, text in own.items():
        try:
            values[name] = TOPIC_OPTIONS.known(name).parse(text)
        except ConfigError:
            continue
    return values


def log_config(options: Mapping[str, Value], producer_id_expiration_ms: int) -> LogConfig:
    values: dict[str, object] = {"producer_id_expiration_ms": producer_id_expiration_ms}
    for field, name in _FIELDS:
        value = options[name]
        values[field] = tuple(value) if isinstance(value, list) else value
    internal = options.get("internal.segment.bytes")
    if internal is not None:
        values["segment_bytes"] = internal
    return LogConfig(**values)  # type: ignore[arg-type]

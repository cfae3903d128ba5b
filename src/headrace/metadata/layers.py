"""Sources of an option's value, in this order: topic, dynamic broker, dynamic default of all brokers, static, default.

Some broker options have several names, strongest first. Describing a name shows its own value and the weaker ones after it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

from headrace.options.topic_options import BROKER_DEFAULTS, TOPIC_OPTIONS


class Source(IntEnum):
    """The source of a value, with its number in the protocol."""

    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT = 3
    STATIC = 4
    DEFAULT = 5
    LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class Layer(NamedTuple):
    name: str
    text: str | None
    source: Source


_TIMES = ("log.retention.ms", "log.retention.minutes", "log.retention.hours")
_NAMES: Mapping[str, tuple[str, ...]] = {
    "log.roll.ms": ("log.roll.ms", "log.roll.hours"),
    "log.roll.hours": ("log.roll.ms", "log.roll.hours"),
    "log.roll.jitter.ms": ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    "log.roll.jitter.hours": ("log.roll.jitter.ms", "log.roll.jitter.hours"),
    "log.flush.interval.ms": ("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
    **dict.fromkeys(_TIMES, _TIMES),
}
LISTENER_PREFIX = "listener.name."


class BrokerLayers(NamedTuple):
    """The sources of a broker's options, with values as text."""

    dynamic: Mapping[str, str]
    dynamic_default: Mapping[str, str]
    static: Mapping[str, str]
    defaults: Mapping[str, str]

    def of(self, name: str) -> list[Layer]:
        """Return the values of an option, the effective one first; empty if only its other names have values."""
        found = [
            Layer(synonym, texts[synonym], source)
            for texts, source in zip(self, _SOURCES, strict=True)
            for synonym in broker_synonyms(name)
            if synonym in texts
        ]
        while found and found[0].name != name:
            del found[0]
        return found

    def of_topic(self, name: str) -> list[Layer]:
        """Return the broker values that give a topic option its default, the effective one first."""
        names = BROKER_DEFAULTS.get(name)
        return [] if names is None else self.of(names[0][0])

    def topic_default(self, name: str) -> Layer:
        """Return the value for a topic that does not set the option, converted to the unit of the topic option."""
        for texts, source in zip(self[:3], _SOURCES, strict=False):
            for broker_name, factor in BROKER_DEFAULTS.get(name, ()):
                if broker_name in texts:
                    text = texts[broker_name]
                    return Layer(broker_name, str(int(text) * factor) if factor > 1 else text, source)
        option = TOPIC_OPTIONS[name]
        return Layer(name, option.text(option.default), Source.DEFAULT)


_SOURCES = (Source.DYNAMIC_BROKER, Source.DYNAMIC_DEFAULT, Source.STATIC, Source.DEFAULT)


def broker_synonyms(name: str) -> tuple[str, ...]:
    if name.startswith(LISTENER_PREFIX):
        base = without_listener(name)
        return (name, base) if base else (name,)
    return _NAMES.get(name, (name,))


def without_listener(name: str) -> str:
    """Return `ssl.keystore.type` for `listener.name.internal.ssl.keystore.type`; empty if nothing is left."""
    return name.removeprefix(LISTENER_PREFIX).partition(".")[2]

"""The bounds of a read as the options give them, before brokers resolve them to offsets."""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum

from msgspec import Struct

from headrace.base.errors import ConfigError
from headrace.base.ids import TopicPartition
from headrace.options.table import LONG_MAX, Value

LATEST, EARLIEST = -1, -2  # special values in place of an offset

PartitionValues = dict[TopicPartition, int]


class BoundKind(Enum):
    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSETS = "offsets"
    TIMESTAMPS = "timestamps"
    TIMESTAMP = "timestamp"


class Bound(Struct, frozen=True):
    kind: BoundKind
    option: str  # the option that set this bound
    values: PartitionValues = {}
    timestamp: int = 0
    latest_if_none: bool = True  # without records at or after the timestamp: use the partition's end, else fail


def named_bound(values: Mapping[str, Value], side: str, default: str) -> Bound:
    """Return the bound for a `side`, which is "starting" or "ending".

    A single timestamp takes precedence over timestamps per partition, and those over offsets.
    """
    latest_if_none = side == "ending" or values["startingOffsetsByTimestampStrategy"] == "latest"
    timestamp = values[name := f"{side}Timestamp"]
    if isinstance(timestamp, int):
        return Bound(BoundKind.TIMESTAMP, name, timestamp=timestamp, latest_if_none=latest_if_none)
    text = values[name := f"{side}OffsetsByTimestamp"]
    if isinstance(text, str):
        return Bound(BoundKind.TIMESTAMPS, name, partition_values(name, text, 0), latest_if_none=latest_if_none)
    text = str(values[name := f"{side}Offsets"] or default).strip()
    if text.lower() in (BoundKind.EARLIEST.value, BoundKind.LATEST.value):
        return Bound(BoundKind(text.lower()), name)
    return Bound(BoundKind.OFFSETS, name, partition_values(name, text, EARLIEST))


def partition_values(name: str, text: str, low: int) -> PartitionValues:
    """Parse JSON of the form {"topic": {"0": 23}}; raise ConfigError if it is malformed or a value is below `low`."""
    words = "earliest, latest or " if low < 0 else ""
    wrong = ConfigError(f'{name}={text!r} is not allowed: it must be {words}JSON of the form {{"topic": {{"0": 23}}}}')
    try:
        found = json.loads(text)
    except ValueError:
        raise wrong from None
    if not isinstance(found, dict) or not all(isinstance(some, dict) for some in found.values()):
        raise wrong
    values: PartitionValues = {}
    for topic, some in found.items():
        for partition, value in some.items():
            if not (partition.isascii() and partition.isdigit()) or type(value) is not int:
                raise wrong
            if not low <= value <= LONG_MAX:
                raise ConfigError(f"{name}: {value} of {topic}-{partition} is not allowed: at least {low}")
            values[TopicPartition(topic, int(partition))] = value
    return values


def check_order(starting: Bound, ending: Bound) -> None:
    """Raise ConfigError if the bounds of a batch read contradict each other, as far as the options show."""
    if starting.kind is BoundKind.LATEST:
        raise ConfigError("startingOffsets=latest is not allowed for a batch read: it would begin at its end")
    if ending.kind is BoundKind.EARLIEST:
        raise ConfigError("endingOffsets=earliest is not allowed for a batch read: it would end at its beginning")
    if starting.kind is BoundKind.OFFSETS:
        _refuse(starting, LATEST, "latest (-1) is not allowed for a batch read: it would begin at its end")
    if ending.kind is BoundKind.OFFSETS:
        _refuse(ending, EARLIEST, "earliest (-2) is not allowed for a batch read: it would end at its beginning")
    if starting.kind is not ending.kind or starting.kind not in (BoundKind.OFFSETS, BoundKind.TIMESTAMPS):
        return
    if starting.values.keys() != ending.values.keys():
        odd = ", ".join(map(str, sorted(starting.values.keys() ^ ending.values.keys())))
        raise ConfigError(f"{starting.option} and {ending.option} must name the same partitions; only one names {odd}")
    for partition, low in starting.values.items():
        high = ending.values[partition]
        if low > high >= 0:
            raise ConfigError(f"{partition}: {starting.option} {low} lies after {ending.option} {high}")


def _refuse(bound: Bound, value: int, why: str) -> None:
    for partition, found in bound.values.items():
        if found == value:
            raise ConfigError(f"{bound.option} of {partition}: {why}")

"""Checks of option values that clients send, with Kafka's error messages; `options.table` has those for operators."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import isfinite, nan

from headrace.base.errors import ErrorCode, KafkaError
from headrace.metadata.subscriptions import read_subscription
from headrace.options.resource_options import (
    CLIENT_METRICS_OPTIONS,
    GROUP_BOUNDS,
    GROUP_OPTIONS,
    METRICS_INTERVAL_MS,
    group_default_name,
)
from headrace.options.table import Kind, Option, Value
from headrace.options.topic_options import TOPIC_OPTIONS

_BITS = {Kind.INT: 31, Kind.SHORT: 15, Kind.LONG: 63}
_NUMBER = re.compile(r"[+-]?[0-9]+\Z")
_THROTTLED = re.compile(r"[0-9]+:[0-9]+\Z")
_DURATION = re.compile(r"by_duration:P(?=.)([0-9]+D)?(T(?=.)([0-9]+H)?([0-9]+M)?([0-9]+(\.[0-9]+)?S)?)?\Z")


def check_value(option: Option, text: str) -> Value:
    """Parse the value of an option. Raise KafkaError INVALID_CONFIG if it is invalid."""
    text = text.strip()
    if option.kind is Kind.BOOLEAN:
        if text.lower() not in ("true", "false"):
            raise _wrong(option, text, "Expected value to be either true or false")
        return text.lower() == "true"
    if option.kind in _BITS:
        bits = _BITS[option.kind]
        if not _NUMBER.match(text) or len(text) > 25 or not -(1 << bits) <= int(text) < 1 << bits:
            raise _wrong(option, text, f"Not a number of type {option.kind.name}")
        return _bounded(option, int(text))
    if option.kind is Kind.DOUBLE:
        try:
            number = float(text)
        except ValueError:
            number = nan
        if not isfinite(number):  # no bound would refuse it
            raise _wrong(option, text, "Not a number of type DOUBLE")
        return _bounded(option, number)
    if option.kind is Kind.LIST:
        items = list(dict.fromkeys(item.strip() for item in text.split(",") if item.strip()))
        for item in items:
            _chosen(option, item)
        if option.name.endswith(".replication.throttled.replicas"):
            _check_throttled(option, items)
        return items
    _chosen(option, text)
    return text


def _bounded(option: Option, value: float) -> int | float:
    if option.name == "compression.gzip.level" and value != -1 and not 1 <= value <= 9:
        raise _wrong(option, value, "Value must be between 1 and 9 or equal to -1")
    if option.at_least is not None and value < option.at_least:
        raise _wrong(option, value, f"Value must be at least {option.at_least}")
    if option.at_most is not None and value > option.at_most:
        raise _wrong(option, value, f"Value must be no more than {option.at_most}")
    return value


def _chosen(option: Option, text: str) -> None:
    if option.one_of and text not in option.one_of:
        raise _wrong(option, text, "String must be one of: " + ", ".join(option.one_of))


def _check_throttled(option: Option, items: list[str]) -> None:
    if items != ["*"] and not all(_THROTTLED.match(item) for item in items):
        shape = "[partitionId]:[brokerId],[partitionId]:[brokerId],..."
        raise _wrong(
            option,
            f"[{', '.join(items)}]",
            f"{option.name} must be the literal '*' or a list of replicas in the following format: {shape}",
        )


def _wrong(option: Option, value: object, why: str) -> KafkaError:
    shown = "[hidden]" if option.kind is Kind.PASSWORD else value
    return KafkaError(ErrorCode.INVALID_CONFIG, f"Invalid value {shown} for configuration {option.name}: {why}")


def check_topic(configs: Mapping[str, str]) -> None:
    """Check all options of one topic together. Raise KafkaError INVALID_CONFIG if one is invalid."""
    _check_names(configs, TOPIC_OPTIONS, "Unknown topic config name")
    values = {name: check_value(TOPIC_OPTIONS[name], text) for name, text in configs.items()}
    low, high = (
        values.get(name, TOPIC_OPTIONS[name].default) for name in ("min.compaction.lag.ms", "max.compaction.lag.ms")
    )
    assert isinstance(low, int) and isinstance(high, int)
    if low > high:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            f"conflict topic config setting min.compaction.lag.ms ({low}) > max.compaction.lag.ms ({high})",
        )
    if values.get("remote.storage.enable") is True:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG,
            "Tiered Storage functionality is disabled in the broker. "
            "Topic cannot be configured with remote log storage.",
        )


def check_group(configs: Mapping[str, str], broker: Mapping[str, Value]) -> None:
    """Check all options of one group together. Raise KafkaError INVALID_CONFIG if one is invalid.

    `broker` has the broker's options, which bound those of a group and give their defaults.
    """
    _check_names(configs, GROUP_OPTIONS, "Unknown group config name")
    values = {name: check_value(GROUP_OPTIONS[name], text) for name, text in configs.items()}
    reset = values.get("share.auto.offset.reset", "latest")
    if isinstance(reset, str) and reset not in ("latest", "earliest") and not _DURATION.match(reset):
        name = "share.auto.offset.reset"
        raise _wrong(
            GROUP_OPTIONS[name],
            reset,
            f"Invalid value `{reset}` for configuration {name}. "
            "The value must be either 'earliest', 'latest' or of the format 'by_duration:<PnDTnHnMn.nS>'.",
        )
    for name, (least, most) in GROUP_BOUNDS.items():
        value = values.get(name)
        if value is None:
            continue
        for bound, fits, words in ((least, _at_least, "greater"), (most, _at_most, "less")):
            if bound is not None and not fits(value, broker.get(bound)):
                raise KafkaError(ErrorCode.INVALID_CONFIG, f"{name} must be {words} than or equal to {bound}")
    for kind in ("consumer", "share", "streams"):
        session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
        if not _at_least(_group_value(values, session, broker), _group_value(values, heartbeat, broker), strictly=True):
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{session} must be greater than {heartbeat}")


def _group_value(values: Mapping[str, Value], name: str, broker: Mapping[str, Value]) -> Value:
    behind = group_default_name(name)
    value = values.get(name, None if behind is None else broker.get(behind))
    return GROUP_OPTIONS[name].default if value is None else value


def _at_least(value: Value, bound: Value, *, strictly: bool = False) -> bool:
    if not isinstance(value, int) or not isinstance(bound, int):
        return True
    return value > bound if strictly else value >= bound


def _at_most(value: Value, bound: Value) -> bool:
    return not isinstance(value, int) or not isinstance(bound, int) or value <= bound


def check_client_metrics(name: str, configs: Mapping[str, str]) -> None:
    if not name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Subscription name can't be empty")
    for key in configs:
        if key not in CLIENT_METRICS_OPTIONS:
            raise KafkaError(ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {key}")
    if "interval.ms" in configs:
        interval = check_value(CLIENT_METRICS_OPTIONS["interval.ms"], configs["interval.ms"])
        low, high = METRICS_INTERVAL_MS
        if not isinstance(interval, int) or not low <= interval <= high:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"Invalid value {interval} for interval.ms, interval must be between {low} and {high} (1 hour)",
            )
    read_subscription(configs)


def _check_names(configs: Mapping[str, str], known: Mapping[str, Option], complaint: str) -> None:
    for name in configs:
        if name not in known:
            raise KafkaError(ErrorCode.INVALID_CONFIG, f"{complaint}: {name}")

"""Dynamic broker options: precedence, which ones may change, Kafka's errors for the others, and subscribers."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import NodeId
from headrace.broker.dynamic_options import DynamicOptions
from headrace.broker.loggers import change_level, loggers
from headrace.controller.configs import APPEND, DELETE, SET
from headrace.metadata.image import BROKER_CONFIG
from headrace.metadata.layers import Layer, Source
from headrace.metadata.loader import MetadataLoader
from headrace.options.node_options import NODE_OPTIONS
from headrace.protocol.messages.stored.metadata_cluster import ConfigRecord

SETTINGS = {name: option.default for name, option in NODE_OPTIONS.items()} | {"log.dirs": ["/a", "/b"], "node.id": 1}


class OptionsHarness:
    def __init__(self, **explicit: Any) -> None:
        given = {name.replace("_", "."): value for name, value in explicit.items()}
        self.options = DynamicOptions({**SETTINGS, **given}, frozenset(given), NodeId(1))
        self.loader = MetadataLoader([self.options])
        self.offset = 0

    def set(self, broker: str, name: str, value: str | None) -> None:
        self.offset += 1
        record = ConfigRecord(resource_type=BROKER_CONFIG, resource_name=broker, name=name, value=value)
        self.loader.apply([record], self.offset, 1)


def test_per_broker_options_override_cluster_defaults_and_both_override_settings() -> None:
    harness = OptionsHarness(message_max_bytes=7)
    assert harness.options.topic_defaults()["max.message.bytes"] == 7
    for broker, value, effective in (("", "8", 8), ("1", "9", 9), ("2", "10", 9), ("1", None, 8), ("", None, 7)):
        harness.set(broker, "message.max.bytes", value)
        assert harness.options.values["message.max.bytes"] == effective
        assert harness.options.topic_defaults()["max.message.bytes"] == effective


def test_layers_are_listed_by_precedence_with_weaker_synonyms_last() -> None:
    harness = OptionsHarness(log_retention_hours=1)
    assert harness.options.layers().of("log.retention.ms") == []
    harness.set("", "log.retention.ms", "5")
    harness.set("1", "log.retention.ms", "6")
    assert harness.options.layers().of("log.retention.ms") == [
        Layer("log.retention.ms", "6", Source.DYNAMIC_BROKER),
        Layer("log.retention.ms", "5", Source.DYNAMIC_DEFAULT),
        Layer("log.retention.hours", "1", Source.STATIC),
        Layer("log.retention.hours", "168", Source.DEFAULT),
    ]
    assert harness.options.layers().of_topic("retention.ms") == harness.options.layers().of("log.retention.ms")
    assert harness.options.layers().topic_default("retention.ms") == Layer(
        "log.retention.ms", "6", Source.DYNAMIC_BROKER
    )
    hours = OptionsHarness(log_retention_hours=2).options.layers().topic_default("retention.ms")
    assert hours == Layer("log.retention.hours", "7200000", Source.STATIC)


def test_subscribers_are_notified_only_of_changes_for_this_broker() -> None:
    harness = OptionsHarness()
    notified: list[Any] = []
    harness.options.subscribe(lambda values: notified.append(values["max.connections"]))
    harness.set("2", "max.connections", "5")
    assert notified == []
    harness.set("1", "max.connections", "5")
    harness.set("", "max.connections", "6")
    assert notified == [5, 5]


def test_invalid_dynamic_options_in_the_metadata_are_logged_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    harness = OptionsHarness()
    harness.set("1", "num.partitions", "5")
    harness.set("1", "message.max.bytes", "many")
    harness.set("", "listeners", "PLAINTEXT://:1")
    harness.set("1", "ssl.keystore.location", "/x")
    assert harness.options.values == {**SETTINGS, "num.partitions": 1}
    for name in ("num.partitions", "message.max.bytes", "listeners", "ssl.keystore.location"):
        assert f"the dynamic option {name} is not used" in caplog.text


@pytest.mark.parametrize(
    ("texts", "per_broker", "expected_message"),
    [
        (
            {"num.partitions": "3", "node.id": "4"},
            True,
            "Cannot update these configs dynamically: [node.id, num.partitions]",
        ),
        ({"ssl.keystore.location": "/x"}, True, "only per-listener using the listener prefix: [ssl.keystore.location]"),
        (
            {"log.retention.ms": "a"},
            False,
            "Invalid value a for configuration log.retention.ms: Not a number of type LONG",
        ),
        ({"message.max.bytes": "-1"}, False, "Value must be at least 0"),
        ({"cordoned.log.dirs": "*"}, False, "broker id must be specified: [cordoned.log.dirs]"),
        ({"listener.name.x.ssl.keystore.location": "/x"}, False, "broker id must be specified"),
        ({"listeners": "PLAINTEXT://:1"}, True, "listeners cannot be changed while this node runs"),
        ({"num.io.threads": "100"}, False, "not be greater than double the current value 8"),
        ({"num.io.threads": "2"}, False, "at least half the current value 8"),
        ({"cordoned.log.dirs": "/c"}, True, "Missing entries : /c"),
        ({"log.cleaner.dedupe.buffer.size": "1048576"}, False, "log.cleaner.dedupe.buffer.size=1048576 must be more"),
    ],
)
def test_invalid_dynamic_option_changes_are_refused_with_kafkas_message(
    texts: dict[str, str], per_broker: bool, expected_message: str
) -> None:
    with pytest.raises(KafkaError) as caught:
        OptionsHarness().options.check(texts, per_broker=per_broker)
    assert caught.value.code is ErrorCode.INVALID_REQUEST and expected_message in caught.value.message


def test_valid_dynamic_option_changes_are_accepted() -> None:
    options = OptionsHarness().options
    options.check({"log.retention.ms": "5", "num.io.threads": "9", "unknown.to.us": "x"}, per_broker=False)
    options.check({"cordoned.log.dirs": "/a", "listener.name.x.ssl.keystore.location": "/x"}, per_broker=True)


def test_logger_levels_can_be_changed_and_reset() -> None:
    name = "headrace.broker.dynamic_options"
    assert name in loggers()
    change_level(name, SET, "TRACE", apply=False)
    assert loggers()[name] != "TRACE"
    change_level(name, SET, "TRACE", apply=True)
    assert loggers()[name] == "TRACE"
    change_level(name, DELETE, None, apply=True)
    assert loggers()[name] == loggers()["root"]


@pytest.mark.parametrize(
    ("name", "operation", "value", "code"),
    [
        ("no.such", SET, "INFO", ErrorCode.INVALID_CONFIG),
        ("root", SET, "LOUD", ErrorCode.INVALID_CONFIG),
        ("root", APPEND, "INFO", ErrorCode.INVALID_REQUEST),
        ("root", DELETE, None, ErrorCode.INVALID_REQUEST),
        ("root", 9, None, ErrorCode.INVALID_REQUEST),
    ],
)
def test_invalid_logger_level_changes_are_refused(
    name: str, operation: int, value: str | None, code: ErrorCode
) -> None:
    with pytest.raises(KafkaError) as caught:
        change_level(name, operation, value, apply=True)
    assert caught.value.code is code

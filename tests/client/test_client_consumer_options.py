"""Options of the consumer and the settings made from them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.base.errors import ConfigError
from headrace.client.consumer.consumer import AsyncConsumer
from headrace.client.consumer.list_offsets import EARLIEST, LATEST
from headrace.client.consumer.options import (
    CONSUMER_OPTIONS,
    ConsumerSettings,
    consumer_settings,
    duration_ms,
    reset_policy,
)
from headrace.client.wire.opening import client_values


def settings(**options: Any) -> ConsumerSettings:
    given = {name.replace("_", "."): value for name, value in options.items()}
    return consumer_settings(client_values(given, CONSUMER_OPTIONS), given)


def test_defaults_match_kafka() -> None:
    made = settings()
    assert made.fetch == (500, 1, 50 << 20, 1 << 20, 0) and made.poll_records_max == 500 and made.check_crcs
    assert made.reset.time == LATEST and made.auto_commit_s is None and made.group_id is None
    assert settings(group_id="g").auto_commit_s == 5.0


@pytest.mark.parametrize(
    ("text", "timestamp"),
    [
        ("earliest", EARLIEST),
        ("LATEST", LATEST),
        ("none", None),
        ("by_duration:PT1H", 10_000_000_000 - 3_600_000),
        ("by_duration:P1DT2H3M4.5S", 10_000_000_000 - 93_784_500),
        ("by_duration:P9999D", 0),
    ],
)
def test_auto_offset_reset_resolves_to_a_timestamp(text: str, timestamp: int | None) -> None:
    assert reset_policy(text).timestamp(10_000_000_000) == timestamp


@pytest.mark.parametrize(
    "text", ["", "smallest", "by_duration:", "by_duration:P", "by_duration:1H", "by_duration:-PT1H"]
)
def test_an_invalid_auto_offset_reset_raises_config_error(text: str) -> None:
    with pytest.raises(
        ConfigError, match=r"auto\.offset\.reset=.* is not allowed: it must be earliest, latest, none or"
    ):
        reset_policy(text)


@pytest.mark.parametrize("text", ["P1D", "PT24H", "PT1440M", "PT86400S", "PT86400.000S"])
def test_iso_8601_durations_are_parsed_to_milliseconds(text: str) -> None:
    assert duration_ms(text) == 86_400_000


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_poll_records": 0}, r"max\.poll\.records='0' is not allowed: it must be a number from 1"),
        ({"isolation_level": "chaos"}, r"isolation\.level='chaos' is not allowed"),
        ({"group_protocol": "modern"}, r"group\.protocol='modern' is not allowed"),
        ({"enable_auto_commit": True}, r"enable\.auto\.commit=true is not allowed without group\.id"),
        (
            {"group_protocol": "consumer", "session_timeout_ms": 1},
            r"session\.timeout\.ms is not allowed with group\.pro",
        ),
        ({"group_remote_assignor": "uniform"}, r"group\.remote\.assignor is not allowed with group\.protocol=classic"),
    ],
)
def test_invalid_options_and_combinations_are_named_in_the_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        settings(**options)


def test_a_consumer_without_bootstrap_servers_raises_config_error() -> None:
    async def make() -> None:
        AsyncConsumer({"group.id": "g"})

    with pytest.raises(ConfigError, match=r"bootstrap\.servers must name at least one broker"):
        asyncio.run(make())


def test_subscribe_rejects_invalid_arguments_and_poll_fails_after_close() -> None:
    async def work() -> None:
        consumer = AsyncConsumer({"bootstrap.servers": "localhost:1", "group.id": "g"})
        with pytest.raises(ValueError, match="either topics or a pattern"):
            consumer.subscribe([], pattern=None)
        with pytest.raises(ValueError, match="either topics or a pattern"):
            consumer.subscribe(["a"], pattern="b")
        with pytest.raises(TypeError, match="topics is a collection of names, not one name"):
            consumer.subscribe("orders")
        await consumer.close()
        await consumer.close()
        with pytest.raises(Exception, match="the consumer is closed"):
            await consumer.poll(0)

    asyncio.run(work())

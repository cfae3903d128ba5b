"""The consumer on real Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")

from testkit.kafka_peer import KafkaPeer, require_kafka
from tests.client.consumer_checks import CHECKS

pytestmark = [pytest.mark.java, pytest.mark.clients, pytest.mark.long]


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaPeer]:
    require_kafka()
    with KafkaPeer({"log.retention.ms": "-1"}) as peer:
        yield peer


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_consumer_checks_pass_on_kafka(kafka: KafkaPeer, check: Callable[..., Any]) -> None:
    asyncio.run(check(kafka.bootstrap))

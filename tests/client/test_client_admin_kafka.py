"""The admin client on real Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from testkit.kafka_peer import KafkaPeer, require_kafka
from tests.client.admin_checks import CHECKS, KAFKA_ONLY

pytestmark = [pytest.mark.java, pytest.mark.long]


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaPeer]:
    require_kafka()
    with KafkaPeer({"log.retention.ms": "-1", "offsets.topic.num.partitions": "3"}) as peer:
        yield peer


@pytest.mark.parametrize("check", [*CHECKS, *KAFKA_ONLY], ids=lambda check: check.__name__)
def test_admin_checks_pass_on_kafka(kafka: KafkaPeer, check: Callable[..., Any]) -> None:
    asyncio.run(asyncio.wait_for(check(kafka.bootstrap), 50))

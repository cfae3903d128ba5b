"""The producer on real Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")

from testkit.kafka_peer import KafkaPeer, require_kafka
from tests.client.producer_checks import CHECKS, KILL_CHECKS, a_prepared_transaction_outlives_its_producer

pytestmark = [pytest.mark.java, pytest.mark.clients, pytest.mark.long]

TWO_PHASE = {"transaction.two.phase.commit.enable": "true", "unstable.api.versions.enable": "true"}


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaPeer]:
    require_kafka()
    with KafkaPeer({"log.retention.ms": "-1", **TWO_PHASE}) as peer:
        yield peer


@pytest.fixture
def kafka_to_kill() -> Iterator[KafkaPeer]:
    """Yield a Kafka of the test's own: in a shared one, the process after the restart would outlive the test."""
    require_kafka()
    with KafkaPeer({"log.retention.ms": "-1", **TWO_PHASE}) as peer:
        yield peer


@pytest.mark.parametrize(
    "check", [*CHECKS, a_prepared_transaction_outlives_its_producer], ids=lambda check: check.__name__
)
def test_producer_checks_pass_on_kafka(kafka: KafkaPeer, check: Callable[..., Any]) -> None:
    asyncio.run(check(kafka.bootstrap))


@pytest.mark.parametrize("check", KILL_CHECKS, ids=lambda check: check.__name__)
def test_killing_kafka_neither_loses_nor_duplicates_records(
    kafka_to_kill: KafkaPeer, check: Callable[..., Any]
) -> None:
    asyncio.run(check(kafka_to_kill, kills=1))  # a restart takes many seconds

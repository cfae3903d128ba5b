"""The producer on real Kafka."""

import asyncio

import pytest

pytest.importorskip("confluent_kafka")

from producer_checks import CHECKS, KILLING, a_prepared_transaction_outlives_its_producer
from testkit.kafka_peer import KafkaPeer, require_kafka

pytestmark = [pytest.mark.java, pytest.mark.clients, pytest.mark.long]

TWO_PHASE = {"transaction.two.phase.commit.enable": "true", "unstable.api.versions.enable": "true"}


@pytest.fixture(scope="module")
def kafka():
    require_kafka()
    with KafkaPeer({"log.retention.ms": "-1", **TWO_PHASE}) as peer:
        yield peer


@pytest.mark.parametrize(
    "check", [*CHECKS, a_prepared_transaction_outlives_its_producer], ids=lambda check: check.__name__
)
def test_producer_of_kafka(kafka, check):
    asyncio.run(check(kafka.bootstrap))


@pytest.mark.parametrize("check", KILLING, ids=lambda check: check.__name__)
def test_a_kafka_that_is_killed_and_comes_back_loses_and_doubles_nothing(kafka, check):
    asyncio.run(check(kafka, kills=1))  # a restart takes many seconds

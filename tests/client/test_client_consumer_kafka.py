"""The consumer on real Kafka."""

import asyncio

import pytest

pytest.importorskip("confluent_kafka")

from consumer_checks import CHECKS
from testkit.kafka_peer import KafkaPeer, require_kafka

pytestmark = [pytest.mark.java, pytest.mark.clients, pytest.mark.long]


@pytest.fixture(scope="module")
def kafka():
    require_kafka()
    with KafkaPeer({"log.retention.ms": "-1"}) as peer:
        yield peer


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_consumer_checks_pass_on_kafka(kafka, check):
    asyncio.run(check(kafka.bootstrap))

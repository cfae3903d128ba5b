"""The admin client on real Kafka."""

import asyncio

import pytest
from admin_checks import CHECKS, KAFKA_ONLY
from testkit.kafka_peer import KafkaPeer, require_kafka

pytestmark = [pytest.mark.java, pytest.mark.long]


@pytest.fixture(scope="module")
def kafka():
    require_kafka()
    with KafkaPeer({"log.retention.ms": "-1", "offsets.topic.num.partitions": "3"}) as peer:
        yield peer


@pytest.mark.parametrize("check", [*CHECKS, *KAFKA_ONLY], ids=lambda check: check.__name__)
def test_admin_checks_pass_on_kafka(kafka, check):
    asyncio.run(asyncio.wait_for(check(kafka.bootstrap), 50))

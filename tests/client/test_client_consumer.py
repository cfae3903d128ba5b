"""The consumer on a Headrace node; test_client_consumer_kafka.py does the same on real Kafka."""

import asyncio

import pytest

pytest.importorskip("confluent_kafka")

from consumer_checks import CHECKS

from headrace.testing.cluster import EmbeddedNode

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def node():
    with EmbeddedNode({"log.retention.ms": "-1", "group.initial.rebalance.delay.ms": "0"}) as started:
        yield started


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_consumer_checks_pass_on_headrace(node, check):
    asyncio.run(check(node.bootstrap))

"""The consumer on a Headrace node; test_client_consumer_kafka.py does the same on real Kafka."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")

from tests.client.consumer_checks import CHECKS

from headrace.testing.cluster import EmbeddedNode

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedNode]:
    with EmbeddedNode({"log.retention.ms": "-1", "group.initial.rebalance.delay.ms": "0"}) as started:
        yield started


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_consumer_checks_pass_on_headrace(node: EmbeddedNode, check: Callable[..., Any]) -> None:
    asyncio.run(check(node.bootstrap))

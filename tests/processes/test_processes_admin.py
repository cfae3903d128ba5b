"""Admin clients get the same responses as from real Kafka: error codes and texts, values and their sources."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import pytest
from testkit.kafka_peer import KafkaPeer, require_kafka
from tests.processes.admin_requests import all_requests

from headrace.client.wire.connection import Connection
from headrace.protocol.apis import ApiKey
from headrace.testing.cluster import EmbeddedNode
from headrace.testing.processes import LOOPBACK

pytestmark = pytest.mark.java
SEEN_WITHIN_S = 30.0  # Kafka responds to a change before its own broker shows it
OWN_VALUES = frozenset({"topic_id", "throttle_time_ms"})


def tree(value: Any) -> Any:
    """Return a comparable value: without cluster-specific fields, and sorted where order has no meaning."""
    if isinstance(value, msgspec.Struct):
        return {name: tree(getattr(value, name)) for name in value.__struct_fields__ if name not in OWN_VALUES}
    if isinstance(value, list | tuple):
        found = [tree(one) for one in value]
        is_ordered = any(isinstance(one, dict) and "source" in one for one in found)  # synonyms: the first one wins
        return found if is_ordered else sorted(found, key=repr)
    return value


def comparable_response(port: int, request: Any, version: int) -> Any:
    async def run() -> Any:
        connection = await Connection.connect(LOOPBACK, port)
        try:
            return tree(await connection.request(request, version=version))
        finally:
            await connection.close()

    return asyncio.run(run())


def test_admin_requests_get_the_same_responses_as_from_kafka() -> None:
    require_kafka()
    different = []
    with KafkaPeer() as kafka, EmbeddedNode() as node:
        for request, version in all_requests():
            ours = comparable_response(node.port, request, version)
            deadline = time.monotonic() + SEEN_WITHIN_S
            theirs = comparable_response(kafka.port, request, version)
            while ours != theirs and _only_reads(request) and time.monotonic() < deadline:
                theirs = comparable_response(kafka.port, request, version)
            if ours != theirs:
                different.append(f"{request}\n  kafka: {theirs}\n  we:    {ours}")
    assert not different, "\n".join(different)


def _only_reads(request: Any) -> bool:
    return request.facts.api_key in (
        ApiKey.DESCRIBE_CONFIGS, ApiKey.LIST_CONFIG_RESOURCES, ApiKey.DESCRIBE_TOPIC_PARTITIONS, ApiKey.OFFSET_FOR_LEADER_EPOCH,
    )  # fmt: skip

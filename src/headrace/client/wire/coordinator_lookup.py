"""Looks up the coordinator of a group or a transactional id (FindCoordinator)."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace.base.errors import ErrorCode, KafkaError
from headrace.client.wire.cluster import RETRY_BACKOFF_S, Cluster
from headrace.client.wire.connection import Connection
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

MANY_KEYS_VERSION_MIN = 4
GROUP, TRANSACTION = 0, 1  # key types of FindCoordinator
_KEYS = ("group", "transactional id")
_PASSING = (
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
)


async def find_coordinator(cluster: Cluster, key: str, key_type: int = GROUP) -> tuple[int, Connection]:
    """Return the coordinator's id and a connection, waiting up to the cluster's timeout until it is available."""
    deadline = asyncio.get_running_loop().time() + cluster.timeout_s
    while True:
        connection = await cluster.any_broker()
        version = connection.version_for(FindCoordinatorRequest)
        many = version >= MANY_KEYS_VERSION_MIN
        request = FindCoordinatorRequest(key_type=key_type)
        if many:
            request.coordinator_keys = [key]
        else:
            request.key = key
        response: FindCoordinatorResponse = await connection.request(request, version=version)
        found: Any = response.coordinators[0] if many else response
        code = ErrorCode(found.error_code)
        if code is ErrorCode.NONE:
            return found.node_id, await cluster.broker(found.node_id)
        if code not in _PASSING or asyncio.get_running_loop().time() > deadline:
            raise KafkaError(code, found.error_message or f"{_KEYS[key_type]} {key}")
        await asyncio.sleep(RETRY_BACKOFF_S)

"""Finds the coordinators of groups and transactional ids (FindCoordinator), and connects to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.base.errors import ErrorCode, KafkaError
from headrace.client.retry import Retry, RetryPolicy
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.connection import Connection
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

MANY_KEYS_VERSION_MIN = 4
GROUP, TRANSACTION = 0, 1  # key types of FindCoordinator
COORDINATOR = "coordinator"  # purpose of the connection: its responses must not wait for a fetch
COORDINATOR_MOVED = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE}
)  # the coordinator must be found again
COORDINATOR_TRANSIENT = COORDINATOR_MOVED | {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
_KEYS = ("group", "transactional id")
_POLICY = RetryPolicy(codes=COORDINATOR_TRANSIENT, exceptions=())


async def find_coordinator(cluster: Cluster, key: str, key_type: int = GROUP) -> tuple[int, Connection]:
    """Return the coordinator's id and a connection, waiting up to the cluster's timeout until it is available."""

    async def attempt() -> int:
        [found] = await _send(cluster, await cluster.any_broker(), [key], key_type)
        code = ErrorCode(found.error_code)
        if code is not ErrorCode.NONE:
            raise KafkaError(code, found.error_message or f"{_KEYS[key_type]} {key}")
        node_id: int = found.node_id
        return node_id

    node_id = await Retry(_POLICY, cluster.timeout_s, random=cluster.random).run(attempt)
    return node_id, await cluster.broker(node_id)


async def find_coordinators(cluster: Cluster, keys: Sequence[str], key_type: int = GROUP) -> dict[str, int]:
    """Return the ids of the coordinators that one request finds.

    Keys whose coordinator is not available now are missing; all are if the broker only accepts one key at a time.
    """
    connection = await cluster.any_broker()
    if connection.version_for(FindCoordinatorRequest) < MANY_KEYS_VERSION_MIN:
        return {}
    found = await _send(cluster, connection, keys, key_type)
    return {one.key: one.node_id for one in found if one.error_code == ErrorCode.NONE}


async def _send(cluster: Cluster, connection: Connection, keys: Sequence[str], key_type: int) -> Sequence[Any]:
    version = connection.version_for(FindCoordinatorRequest)
    request = FindCoordinatorRequest(key_type=key_type)
    if version >= MANY_KEYS_VERSION_MIN:
        request.coordinator_keys = list(keys)
    else:
        [request.key] = keys
    response: FindCoordinatorResponse = await connection.request(request, version=version, timeout_s=cluster.timeout_s)
    return response.coordinators if version >= MANY_KEYS_VERSION_MIN else [response]


class CoordinatorConnection:
    """Connects to the coordinator of one group or transactional id, which is found when first needed.

    Call `forget` when the coordinator may have moved or did not respond: it is then found again.
    """

    def __init__(self, cluster: Cluster, key: str, key_type: int = GROUP, *, node_id: int | None = None) -> None:
        """Create without connecting; `node_id` is the coordinator if it is known already."""
        self._cluster = cluster
        self._key = key
        self._key_type = key_type
        self._node_id = node_id
        self._must_refresh = False

    def forget(self) -> None:
        self._node_id, self._must_refresh = None, True

    async def connect(self, purpose: str = COORDINATOR) -> Connection:
        """Return an open connection. Raise KafkaError if there is no coordinator, Disconnected if it is unreachable."""
        if self._node_id is None:
            if self._must_refresh:
                await self._cluster.refresh([])  # brokers may have new addresses
                self._must_refresh = False
            self._node_id, _ = await find_coordinator(self._cluster, self._key, self._key_type)
        return await self._cluster.broker(self._node_id, purpose)

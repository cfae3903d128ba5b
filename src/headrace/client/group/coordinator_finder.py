"""A group's coordinator, found when first needed and again when in doubt; and retries with backoff."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

from headrace.base.errors import ErrorCode, KafkaError
from headrace.client.group.settings import GroupSettings
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.connection import Connection, Disconnected, NoResponse
from headrace.client.wire.coordinator_lookup import find_coordinator
from headrace.client.wire.frames import UnexpectedResponse

HEARTBEATS = "coordinator"  # connection purpose for heartbeats and commits, which get a response soon
JOINS = "join"  # JoinGroup waits for the whole group, and responses arrive in request order
JITTER = 0.2
ELSEWHERE = frozenset(
    {ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE}
)  # the coordinator must be found again
PASSING = ELSEWHERE | {ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}
UNREACHABLE = (Disconnected, NoResponse)


class GroupCoordinator:
    def __init__(self, cluster: Cluster, settings: GroupSettings) -> None:
        self._cluster = cluster
        self._settings = settings
        self._node_id: int | None = None
        self._is_doubted = False

    def doubt(self) -> None:
        self._node_id, self._is_doubted = None, True

    async def connection(self, purpose: str = HEARTBEATS) -> Connection:
        try:
            if self._node_id is None:
                if self._is_doubted:
                    await self._cluster.refresh([])  # it may have a new address
                    self._is_doubted = False
                self._node_id, _ = await find_coordinator(self._cluster, self._settings.group_id)
            return await self._cluster.broker(self._node_id, purpose)
        except KafkaError as error:
            if error.code not in PASSING and error.code is not ErrorCode.BROKER_NOT_AVAILABLE:
                raise
            raise Disconnected(f"the coordinator of group {self._settings.group_id}: {error}") from error

    async def ask(self, request: Any, *, purpose: str = HEARTBEATS, timeout_s: float | None = None) -> Any:
        return await self.ask_by_version(type(request), lambda version: request, purpose=purpose, timeout_s=timeout_s)

    async def ask_by_version(
        self,
        kind: Any,
        request: Callable[[int], Any],
        version_max: int | None = None,
        *,
        purpose: str = HEARTBEATS,
        timeout_s: float | None = None,
    ) -> Any:
        """Send a request in the newest version that both sides support, and return the response.

        Raise one of UNREACHABLE if there is none, and look for the coordinator again the next time. Raise KafkaError
        UNSUPPORTED_VERSION if the broker is too old.
        """
        timeout_s = self._settings.request_timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self.connection(purpose)
                version = connection.version_for(kind, version_max)
                return await connection.request(request(version), version=version, timeout_s=timeout_s)
        except UNREACHABLE:
            self.doubt()
            raise
        except TimeoutError as error:
            self.doubt()
            group = self._settings.group_id
            raise NoResponse(
                f"REQUEST_TIMED_OUT: nothing from group {group}'s coordinator in {timeout_s:g} s"
            ) from error
        except UnexpectedResponse as error:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, str(error)) from error


class Tries:
    """Retries of one operation, with growing pauses (KIP-580) and a deadline."""

    def __init__(self, settings: GroupSettings, timeout_s: float | None = None) -> None:
        """Start with no tries; without a timeout there is no deadline."""
        self._settings = settings
        self._count = 0
        self._deadline = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s

    @property
    def left_s(self) -> float:
        """Return the seconds left, at most the timeout of one request."""
        if self._deadline is None:
            return self._settings.request_timeout_s
        return min(max(0.0, self._deadline - asyncio.get_running_loop().time()), self._settings.request_timeout_s)

    def begin_again(self) -> None:
        self._count = 0

    async def again(self, error: Exception) -> None:
        """Sleep until the next try is due; raise `error` if the deadline comes first."""
        pause_s = min(self._settings.backoff_s * 2**self._count, self._settings.backoff_s_max)
        pause_s *= random.uniform(1 - JITTER, 1 + JITTER)
        self._count = min(self._count + 1, 30)
        if self._deadline is not None and asyncio.get_running_loop().time() + pause_s >= self._deadline:
            raise error
        await asyncio.sleep(pause_s)

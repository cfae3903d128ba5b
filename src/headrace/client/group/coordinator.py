"""Requests to a group's coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from headrace.base.errors import ErrorCode, KafkaError
from headrace.client.group.settings import GroupSettings
from headrace.client.retry import UNREACHABLE
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.connection import Disconnected, NoResponse
from headrace.client.wire.coordinator_lookup import COORDINATOR, COORDINATOR_TRANSIENT, CoordinatorConnection
from headrace.client.wire.frames import UnexpectedResponse

JOINS = "join"  # purpose of a separate connection: JoinGroup waits for the group, and responses are in request order
_UNAVAILABLE = COORDINATOR_TRANSIENT | {ErrorCode.BROKER_NOT_AVAILABLE}


class GroupCoordinator(CoordinatorConnection):
    """The coordinator of a member's group."""

    def __init__(self, cluster: Cluster, settings: GroupSettings) -> None:
        super().__init__(cluster, settings.group_id)
        self._settings = settings

    async def request(self, message: Any, *, purpose: str = COORDINATOR, timeout_s: float | None = None) -> Any:
        return await self.request_by_version(
            type(message), lambda version: message, purpose=purpose, timeout_s=timeout_s
        )

    async def request_by_version(
        self,
        message_type: Any,
        make_message: Callable[[int], Any],
        version_max: int | None = None,
        *,
        purpose: str = COORDINATOR,
        timeout_s: float | None = None,
    ) -> Any:
        """Send a request in the newest version that both sides support, and return the response.

        If there is no response, raise one of UNREACHABLE, and find the coordinator again for the next request. Raise
        KafkaError UNSUPPORTED_VERSION if the broker is too old.
        """
        group = self._settings.group_id
        timeout_s = self._settings.request_timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._connect(purpose)
                version = connection.version_for(message_type, version_max)
                return await connection.request(make_message(version), version=version, timeout_s=timeout_s)
        except UNREACHABLE:
            self.forget()
            raise
        except TimeoutError as error:
            self.forget()
            raise NoResponse(
                f"REQUEST_TIMED_OUT: no response from the coordinator of group {group} within {timeout_s:g} s"
            ) from error
        except UnexpectedResponse as error:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, str(error)) from error

    async def _connect(self, purpose: str) -> Any:
        try:
            return await self.connect(purpose)
        except KafkaError as error:
            if error.code not in _UNAVAILABLE:
                raise
            raise Disconnected(f"the coordinator of group {self._settings.group_id}: {error}") from error

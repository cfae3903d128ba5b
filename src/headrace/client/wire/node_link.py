"""Requests from one node of a cluster to another, over a single connection that is opened on demand."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any, NamedTuple

from msgspec import Struct

from headrace.base.promise import Promise
from headrace.client.retry import Backoff
from headrace.client.wire.connection import Connection, NotConnected
from headrace.client.wire.security import ClientSecurity

CONNECT_TIMEOUT_S = 5.0
REQUEST_TIMEOUT_S = 30.0


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class LinkOptions(Struct, frozen=True):
    """Settings shared by the links of one node."""

    client_id: str
    security: ClientSecurity = ClientSecurity()
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    request_timeout_s: float = REQUEST_TIMEOUT_S
    backoff: Backoff = Backoff(first_s=0.05, max_s=1.0)


class NodeLink:
    """A link to one address. Concurrent requests share its connection, and are answered in the order they were sent.

    After an attempt to connect has failed, requests fail at once until a pause is over, so that a dead node costs its callers
    neither time nor connections. The link never repeats a request: only the caller knows whether that is safe.
    """

    def __init__(self, address: Address, options: LinkOptions, random: Random) -> None:
        self.address = address
        self._options = options
        self._random = random
        self._connection: Connection | None = None
        self._opening: asyncio.Task[Connection] | None = None
        self._failures = 0  # attempts to connect that failed in a row
        self._not_before_s = 0.0  # time of the event loop before which no attempt to connect is made
        self._last_error = ""
        self._closed = False

    async def request(self, message: Any, *, version: int | None = None, timeout_s: float | None = None) -> Any:
        """Return the response. Raise Disconnected or NoResponse if there is none: the request may have been carried out.

        Raise NotConnected if it was not even sent, KafkaError if the node refuses the login.
        """
        if self._connection is not None and self._connection.is_open:
            return await self._send(self._connection, message, version, timeout_s)
        # In a task of its own: a caller that was started with `base.eager` may have none, but the attempt to connect needs one.
        return await asyncio.get_running_loop().create_task(self._request(message, version, timeout_s))

    def exchange(self, message: Any) -> Promise[Any] | None:
        """Send the request if the link is connected, and return a promise for the response; see `Connection.exchange`.

        Return None, with nothing sent, if the link has to be opened first, which `request` does.
        """
        if self._connection is None or not self._connection.is_open:
            return None
        return self._connection.exchange(message, self._options.request_timeout_s)

    async def _request(self, message: Any, version: int | None, timeout_s: float | None) -> Any:
        return await self._send(await self._connected(), message, version, timeout_s)

    async def _send(self, connection: Connection, message: Any, version: int | None, timeout_s: float | None) -> Any:
        timeout_s = self._options.request_timeout_s if timeout_s is None else timeout_s
        return await connection.request(message, version=version, timeout_s=timeout_s)

    async def _connected(self) -> Connection:
        if self._connection is not None and self._connection.is_open:
            return self._connection
        if self._closed:
            raise NotConnected(f"the link to {self.address} is closed")
        if self._opening is None:
            loop = asyncio.get_running_loop()
            if loop.time() < self._not_before_s:
                raise NotConnected(f"{self.address} could not be reached a moment ago: {self._last_error}")
            if self._connection is not None:
                self._connection.retire()  # its session ends soon; responses under way still arrive
                self._connection = None
            self._opening = loop.create_task(self._open())
            self._opening.add_done_callback(_observe)
        opening = self._opening
        try:
            # Shielded: a caller that gives up must not cancel the attempt that other callers wait for.
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if opening.cancelled() and (task is None or not task.cancelling()):
                raise NotConnected(f"the link to {self.address} is closed") from None
            raise

    async def _open(self) -> Connection:
        options = self._options
        loop = asyncio.get_running_loop()
        try:
            connection = await Connection.connect(
                self.address.host,
                self.address.port,
                client_id=options.client_id,
                timeout_s=options.connect_timeout_s,
                security=options.security,
            )
        except Exception as error:
            self._failures += 1
            self._last_error = str(error)
            self._not_before_s = loop.time() + options.backoff.pause_s(self._failures, self._random)
            raise
        finally:
            self._opening = None
        self._failures = 0
        self._connection = connection
        return connection

    @property
    def is_connected(self) -> bool:
        return self._connection is not None and self._connection.is_open

    async def close(self) -> None:
        """Close the connection; requests under way fail with Disconnected, as do all later ones."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    def abort(self) -> None:
        """Close the connection at once, as if the process had died."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
        if self._connection is not None:
            self._connection.abort()
            self._connection = None


def _observe(task: asyncio.Task[Connection]) -> None:
    """Read the result, so that an attempt whose callers have all given up is not reported as never retrieved."""
    if not task.cancelled():
        task.exception()

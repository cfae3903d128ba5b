"""One connection to a broker, plaintext or with TLS and SASL; it negotiates versions and matches responses in order."""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from typing import Any

from headrace.base.errors import ErrorCode, HeadraceError
from headrace.base.promise import Promise
from headrace.base.system_errors import system_error_text
from headrace.client.wire.authentication import log_in
from headrace.client.wire.frames import UnexpectedResponse, decode_response, encode_request
from headrace.client.wire.receiving import FrameReceiver
from headrace.client.wire.security import ClientSecurity
from headrace.protocol.apis import APIS
from headrace.protocol.errors import DecodeError
from headrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse

IN_FLIGHT_MAX = 1000
SOFTWARE_NAME = "headrace"
SESSION_SHARE = 0.85  # fraction of the session lifetime after which a connection is replaced (KIP-368)


class Disconnected(HeadraceError):
    """The connection is lost or was never made; the request may or may not have been carried out."""


class NotConnected(Disconnected):
    """No connection could be made, so the request was not sent."""


class NoResponse(HeadraceError, TimeoutError):
    """The broker did not respond in time; the request may or may not have been carried out."""


class Connection(asyncio.BufferedProtocol):
    """Created by `connect`. `request` may be called concurrently; responses arrive in request order."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._transport: asyncio.Transport | None = None
        self._receiver = FrameReceiver()
        self._waiting: deque[tuple[int, int, int, asyncio.Future[Any] | Promise[Any]]] = deque()
        # Times at which promised responses are overdue, in the order of the requests.
        self._deadlines: deque[tuple[float, Promise[Any]]] = deque()
        self._deadline_timer: asyncio.TimerHandle | None = None
        self._next_correlation = 0
        self._versions: dict[int, tuple[int, int]] = {}
        self.features: dict[str, int] = {}
        self._lost: Exception | None = None
        self._stale_at: float | None = None
        self._retired = False
        self._writable = asyncio.Event()
        self._writable.set()

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        *,
        client_id: str = "headrace",
        timeout_s: float = 10.0,
        security: ClientSecurity = ClientSecurity(),  # noqa: B008 -- immutable
    ) -> Connection:
        """Connect and log in. Raise NotConnected if the broker is unreachable, KafkaError if it refuses the login."""
        loop = asyncio.get_running_loop()
        connection = cls(client_id)
        try:
            async with asyncio.timeout(timeout_s):
                await loop.create_connection(
                    lambda: connection, host, port, ssl=security.tls, server_hostname=host if security.tls else None
                )
                await connection._agree_on_versions()
                if security.login is not None:
                    life_ms = await log_in(connection, security.login)
                    connection._stale_at = loop.time() + life_ms / 1000 * SESSION_SHARE if life_ms > 0 else None
        except (TimeoutError, OSError, Disconnected) as error:
            await connection.close()
            hint = (
                "; it may speak TLS (security.protocol)" if isinstance(error, Disconnected) and not security.tls else ""
            )
            raise NotConnected(f"cannot connect to {host}:{port}: {_reason(error)}{hint}") from error
        except BaseException:
            await connection.close()
            raise
        return connection

    @property
    def is_open(self) -> bool:
        """Return whether requests can be sent: the connection is not lost, and its session does not end soon."""
        if self._transport is None or self._lost is not None:
            return False
        return self._stale_at is None or asyncio.get_running_loop().time() < self._stale_at

    def version_for(self, message_type: Any, at_most: int | None = None, *, unstable: bool = False) -> int:
        """Return the newest version that both sides support; versions that Kafka may still change only if `unstable`.

        Raise UnexpectedResponse if there is none.
        """
        api = APIS[message_type.facts.api_key]
        if api.key not in self._versions:
            raise UnexpectedResponse(f"the broker does not support {api.key.name} (API key {int(api.key)})")
        low, high = self._versions[api.key]
        ours = api.versions.high if unstable else api.stable_version_max
        version = min(high, ours, ours if at_most is None else at_most)
        if version < max(low, api.versions.low):
            raise UnexpectedResponse(f"the broker speaks {api.key.name} {low}-{high}, we speak {api.versions}")
        return version

    async def request(self, message: Any, *, version: int | None = None, timeout_s: float = 30.0) -> Any:
        """Return the response. Raise NoResponse if there is none in time; needs no task, as `asyncio.timeout` would."""
        if version is None:
            version = self.version_for(type(message))
        response = self.send(message, version)

        def time_out() -> None:
            if not response.done():
                name = APIS[message.facts.api_key].key.name
                response.set_exception(NoResponse(f"REQUEST_TIMED_OUT: no response to {name} within {timeout_s:g} s"))

        timer = asyncio.get_running_loop().call_later(timeout_s, time_out)
        try:
            return await response
        finally:
            timer.cancel()

    def send(self, message: Any, version: int) -> asyncio.Future[Any]:
        """Write the request now and return a future for the response."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._send(message, version, future)
        return future

    def exchange(self, message: Any, timeout_s: float) -> Promise[Any]:
        """Write the request now and return a promise for the response, which fails as `request` does.

        One timer serves all requests, so all must have the same timeout.
        """
        promise: Promise[Any] = Promise()
        self._send(message, self.version_for(type(message)), promise)
        loop = asyncio.get_running_loop()
        self._deadlines.append((loop.time() + timeout_s, promise))
        if self._deadline_timer is None:
            self._deadline_timer = loop.call_later(timeout_s, self._fail_overdue, timeout_s)
        return promise

    def _fail_overdue(self, timeout_s: float) -> None:
        loop, deadlines = asyncio.get_running_loop(), self._deadlines
        self._deadline_timer = None
        while deadlines and deadlines[0][0] <= loop.time():
            _, promise = deadlines.popleft()
            if not promise.done():
                promise.set_exception(NoResponse(f"REQUEST_TIMED_OUT: no response within {timeout_s:g} s"))
        if deadlines:
            self._deadline_timer = loop.call_at(deadlines[0][0], self._fail_overdue, timeout_s)

    def _send(self, message: Any, version: int, response: asyncio.Future[Any] | Promise[Any]) -> None:
        if self._transport is None:
            raise self._lost or Disconnected("the connection is closed")
        if len(self._waiting) >= IN_FLIGHT_MAX:
            raise Disconnected(f"{IN_FLIGHT_MAX} requests are already in flight on this connection")
        self._next_correlation = (self._next_correlation + 1) & 0x7FFFFFFF
        correlation_id = self._next_correlation
        self.send_without_response(message, version)
        self._waiting.append((correlation_id, message.facts.api_key, version, response))

    def send_without_response(self, message: Any, version: int) -> None:
        """Write a request that gets no response: Produce with acks=0."""
        if self._transport is None:
            raise self._lost or Disconnected("the connection is closed")
        for part in encode_request(message, version, self._next_correlation, self._client_id):
            self._transport.write(part)

    @property
    def is_writable(self) -> bool:
        """Return whether all but a little of what was sent has been written to the socket."""
        return self._writable.is_set()

    async def drained(self) -> None:
        """Wait until the connection is writable or lost.

        A caller that does not wait for responses must not send more before that.
        """
        await self._writable.wait()

    def retire(self) -> None:
        """Close the connection as soon as all responses have arrived."""
        self._retired = True
        if not self._waiting and self._transport is not None:
            self._transport.close()

    async def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._fail(Disconnected("the connection was closed by us"))

    def abort(self) -> None:
        """Close the connection at once, without sending what is still buffered."""
        if self._transport is not None:
            self._transport.abort()
            self._fail(Disconnected("the connection was closed by us"))

    async def _agree_on_versions(self) -> None:
        request = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version="0.1.0")
        response: ApiVersionsResponse = await self.send(request, 3)
        if response.error_code != ErrorCode.NONE:
            raise UnexpectedResponse(f"ApiVersions returned error {response.error_code}")
        self._versions = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
        self.features = {feature.name: feature.max_version_level for feature in response.finalized_features}

    # --- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.free_space()

    def buffer_updated(self, nbytes: int) -> None:
        try:
            for frame in self._receiver.received(nbytes):
                self._receive(frame)
        except (UnexpectedResponse, DecodeError) as error:
            transport = self._transport
            self._fail(error)
            if transport is not None:
                transport.close()

    def _receive(self, frame: memoryview) -> None:
        if not self._waiting:
            raise UnexpectedResponse("a response arrived without a request")
        correlation_id, key, version, awaited = self._waiting.popleft()
        response = decode_response(key, version, correlation_id, frame)
        if self._deadlines and self._deadlines[0][1] is awaited:
            self._deadlines.popleft()  # otherwise the response would stay in memory until the timer fires
        if not awaited.done():
            awaited.set_result(response)
        if self._retired:
            self.retire()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(Disconnected(str(exc) if exc else "the broker closed the connection"))

    def _fail(self, error: Exception) -> None:
        self._transport = None
        self._lost = self._lost or error
        self._writable.set()
        if self._deadline_timer is not None:
            self._deadline_timer.cancel()
            self._deadline_timer = None
        self._deadlines.clear()
        waiting, self._waiting = self._waiting, deque()
        for _, _, _, response in waiting:
            if not response.done():
                response.set_exception(error)


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {str(error.reason or error).replace('_', ' ').lower()}"
    if isinstance(error, TimeoutError) and not error.strerror:
        return "timed out"
    return system_error_text(error)

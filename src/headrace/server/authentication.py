"""SASL authentication of one connection: until the peer is known, only ApiVersions and the SASL requests are handled.

    handshake → tokens (SaslAuthenticate, or bare ones after a handshake of version 0) → known (→ handshake → … if sessions end)

It sits between the connection and the dispatcher. A failure is reported after a delay, to slow down guessing, and closes the
connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from enum import Enum
from struct import Struct

import msgspec

from headrace.base.errors import ErrorCode
from headrace.base.metrics import Counter, Metrics
from headrace.protocol.apis import APIS, ApiKey
from headrace.protocol.compiler import codec
from headrace.protocol.errors import DecodeError
from headrace.protocol.headers import read_request_header
from headrace.protocol.messages.api_versions import ApiVersionsResponse
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from headrace.security.principals import USER, Principal
from headrace.security.sasl.exchange import Exchange, Failure, Success
from headrace.server.connection import FRAME_MIN, Connection
from headrace.server.context import Peer
from headrace.server.frames import CloseConnection, Deferred, FrameHandler
from headrace.server.response_writer import ResponseParts

log = logging.getLogger(__name__)

REAUTHENTICATION_PAUSE_S = 1.0  # minimum time between two re-authentications of a connection
_SIZE = Struct(">i")
_PREFIX = Struct(">ii")  # frame size, correlation id


class State(Enum):
    HANDSHAKE = "handshake"
    TOKENS = "tokens"
    BARE_TOKENS = "bare tokens"
    KNOWN = "known"
    FAILED = "failed"


class SaslSettings(msgspec.Struct, frozen=True):
    """SASL settings of one listener.

    `exchange` starts an exchange of one of the enabled mechanisms. `session_s` is the session lifetime by mechanism (0: unlimited).
    """

    mechanisms: tuple[str, ...]
    exchange: Callable[[str], Exchange]
    session_s: Mapping[str, float]
    receive_bytes_max: int = 524_288
    failure_delay_s: float = 0.1


class AuthenticationCounters:
    __slots__ = ("again", "again_failed", "expired", "failed", "succeeded")

    def __init__(self, metrics: Metrics, listener: str) -> None:
        def counter(name: str, meaning: str) -> Counter:
            return metrics.counter(f"kafka_server_socket_server_metrics_{name}_total", meaning, listener=listener)

        self.succeeded = counter("successful_authentication", "Connections whose peer proved who it is.")
        self.failed = counter("failed_authentication", "Connections whose peer did not: TLS handshakes and SASL.")
        self.again = counter("successful_reauthentication", "Peers that proved it again in time.")
        self.again_failed = counter("failed_reauthentication", "Peers that could not prove it again.")
        self.expired = counter("expired_connections_killed", "Connections closed because their session had ended.")


class Authentication:
    """The FrameHandler of one connection on a SASL listener."""

    def __init__(
        self,
        settings: SaslSettings,
        next_handler: FrameHandler,
        counters: AuthenticationCounters,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._settings = settings
        self._next_handler = next_handler
        self._counters = counters
        self._loop = loop
        self._connection: Connection | None = None
        self._frame_max = 0  # the connection's limit once its peer is known
        self._state = State.HANDSHAKE
        self._mechanism = ""
        self._exchange: Exchange | None = None
        self._ends_at: float | None = None  # end of the session in loop time; None: never
        self._began_again_at = -REAUTHENTICATION_PAUSE_S
        self._before: tuple[str, Principal] | None = None  # mechanism and principal before a re-authentication

    def guard(self, connection: Connection) -> None:
        self._connection = connection
        self._frame_max = connection.frame_max
        self._limit()

    def handle(self, peer: Peer, frame: memoryview) -> ResponseParts | Deferred | None:
        if self._state is State.KNOWN:
            if self._ends_at is None or not self._starts_again(peer, frame, self._ends_at):
                return self._next_handler.handle(peer, frame)
        elif self._state is State.FAILED:
            return Deferred(lambda: None, holds_frame=True)  # the error response is pending; ignore further frames
        peer.authentication = self
        if self._state is State.BARE_TOKENS:
            return self._bare_token(peer, bytes(frame))
        key = int.from_bytes(frame[:2], "big")
        if key == ApiKey.API_VERSIONS and self._state is State.TOKENS:
            return self._refuse_versions(peer, frame)
        if not (
            key in (ApiKey.SASL_HANDSHAKE, ApiKey.SASL_AUTHENTICATE)
            or (key == ApiKey.API_VERSIONS and self._state is State.HANDSHAKE)
        ):
            self._counters.failed.value += 1
            raise CloseConnection(
                f"a request of API {key} before SASL authentication (is the client set to another security protocol?)"
            )
        response = self._next_handler.handle(peer, frame)
        return self._end(response) if self._has_failed() else response

    def _refuse_versions(self, peer: Peer, frame: memoryview) -> Deferred:
        """Fail the authentication, with the error that Kafka returns for ApiVersions after SaslHandshake."""
        self._fail(peer, "ApiVersions after SaslHandshake")
        try:
            _, version, correlation_id, _, _ = read_request_header(frame)
        except DecodeError as error:
            raise CloseConnection(str(error)) from None
        if not 0 <= version <= APIS[ApiKey.API_VERSIONS].stable_version_max:
            version = 0
        body = codec(ApiVersionsResponse, version).encode(ApiVersionsResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE))
        return self._end([_PREFIX.pack(len(body) + 4, correlation_id) + body])

    # --- the two SASL requests, called by the handlers of the API table

    def handshake(self, peer: Peer, version: int, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
        mechanisms = list(self._settings.mechanisms)
        if self._state is not State.HANDSHAKE:
            if self._state is not State.KNOWN:
                self._fail(peer, "SaslHandshake in the middle of an exchange")
            return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
        if request.mechanism not in mechanisms:
            self._fail(peer, f"mechanism {request.mechanism[:100]!r} is not enabled ({','.join(mechanisms)} are)")
            return SaslHandshakeResponse(error_code=ErrorCode.UNSUPPORTED_SASL_MECHANISM, mechanisms=mechanisms)
        self._mechanism = request.mechanism
        self._exchange = self._settings.exchange(request.mechanism)
        self._state = State.TOKENS if version else State.BARE_TOKENS
        self._limit()
        return SaslHandshakeResponse(mechanisms=mechanisms)

    def authenticate(self, peer: Peer, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
        if self._state is not State.TOKENS:
            text = "SaslAuthenticate request received after successful authentication"
            if self._state is not State.KNOWN:
                text = "SaslAuthenticate comes after SaslHandshake"
                self._fail(peer, text)
            return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=text)
        token = self._step(peer, bytes(request.auth_bytes))
        if isinstance(token, Failure):
            again = "re-authentication" if self._before is not None else "authentication"
            text = token.message or (
                f"Authentication failed during {again} due to invalid credentials with SASL mechanism {self._mechanism}"
            )
            return SaslAuthenticateResponse(error_code=ErrorCode.SASL_AUTHENTICATION_FAILED, error_message=text)
        lifetime_s = self._session_s() if self._exchange is None else 0.0  # None: the exchange is complete
        return SaslAuthenticateResponse(auth_bytes=token, session_lifetime_ms=int(lifetime_s * 1000))

    def _bare_token(self, peer: Peer, token: bytes) -> ResponseParts | Deferred:
        response = self._step(peer, token)
        if isinstance(response, Failure):
            return self._end(None)
        return [_SIZE.pack(len(response)) + response]

    # --- deciding

    def _step(self, peer: Peer, token: bytes) -> bytes | Failure:
        assert self._exchange is not None, "a handshake comes first"
        step = self._exchange.step(token)
        if isinstance(step, Success):
            step = self._succeed(peer, step)
        if isinstance(step, Failure):
            self._fail(peer, step.reason)
            return step
        return step.token

    def _succeed(self, peer: Peer, success: Success) -> Success | Failure:
        principal = Principal(USER, success.user)
        if self._before is not None:
            mechanism, was = self._before
            if self._mechanism != mechanism:
                text = (
                    f"SASL mechanism '{self._mechanism}' requested by client is not supported for re-authentication"
                    f" of mechanism '{mechanism}'"
                )
                return Failure(text, text)
            if principal != was:
                text = f"Cannot change principals during re-authentication from {was}: {principal}"
                return Failure(text, text)
            self._counters.again.value += 1
        else:
            self._counters.succeeded.value += 1
        peer.principal = principal
        self._state, self._exchange, self._before = State.KNOWN, None, None
        session_s = self._session_s()
        self._ends_at = self._loop.time() + session_s if session_s else None
        assert self._connection is not None
        self._connection.frame_min, self._connection.frame_max = FRAME_MIN, self._frame_max
        return success

    def _session_s(self) -> float:
        return self._settings.session_s.get(self._mechanism, 0.0)

    def _starts_again(self, peer: Peer, frame: memoryview, ends_at: float) -> bool:
        """Return whether the frame starts a re-authentication; raise CloseConnection if the session has expired."""
        now = self._loop.time()
        if (
            int.from_bytes(frame[:2], "big") == ApiKey.SASL_HANDSHAKE
            and now - self._began_again_at >= REAUTHENTICATION_PAUSE_S
        ):
            self._began_again_at = now
            self._before = (self._mechanism, peer.principal)
            self._state = State.HANDSHAKE
            return True
        if now > ends_at:
            self._counters.expired.value += 1
            raise CloseConnection(
                "its session has ended, and the client did not re-authenticate (connections.max.reauth.ms)"
            )
        return False

    # --- failing

    def _has_failed(self) -> bool:
        return self._state is State.FAILED

    def _fail(self, peer: Peer, reason: str) -> None:
        log.warning(
            "authentication of %s%s on %s%s failed: %s",
            peer.address,
            f" ({peer.client_software})" if peer.client_software else "",
            peer.listener,
            f" with {self._mechanism}" if self._mechanism else "",
            reason,
        )
        (self._counters.again_failed if self._before is not None else self._counters.failed).value += 1
        self._state, self._exchange = State.FAILED, None

    def _end(self, response: ResponseParts | Deferred | None) -> Deferred:
        """Return a Deferred that sends the response, if any, after the failure delay and then closes the connection."""
        assert not isinstance(response, Deferred) and self._connection is not None
        connection = self._connection

        def end() -> None:
            if response is not None:
                late.resolve(response)
                connection.flush()
            connection.close()

        timer = self._loop.call_later(self._settings.failure_delay_s, end)
        late = Deferred(timer.cancel, holds_frame=True)
        return late

    def _limit(self) -> None:
        """Tighten the frame size limit of an unauthenticated peer; bare tokens may be shorter than a request header."""
        assert self._connection is not None
        self._connection.frame_max = min(self._settings.receive_bytes_max, self._frame_max)
        self._connection.frame_min = 0 if self._state is State.BARE_TOKENS else FRAME_MIN

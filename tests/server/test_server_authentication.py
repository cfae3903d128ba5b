"""SASL frame by frame, on a loop with a manual clock: order, limits, failures and expiring sessions."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.api import sasl
from headrace.base.errors import ErrorCode
from headrace.base.metrics import Metrics
from headrace.client.wire.frames import decode_response, encode_request
from headrace.protocol.apis import ApiKey
from headrace.protocol.declare import Struct
from headrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headrace.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from headrace.security.credentials import ScramMechanism
from headrace.security.resources import Need, Operation, Resource
from headrace.security.sasl.exchange import Exchange
from headrace.security.sasl.plain import PlainExchange
from headrace.security.sasl.scram import ScramExchange
from headrace.server.authentication import Authentication, AuthenticationCounters, SaslSettings
from headrace.server.connection import FRAME_MIN
from headrace.server.context import Peer
from headrace.server.dispatch import Dispatcher, Service
from headrace.server.frames import CloseConnection, Deferred

NO_PERMISSION_NEEDED = Need(Resource.NONE, Operation.NONE)
FRAME_MAX = 100_000_000
RECEIVE_MAX = 1000
SESSION_S = 60.0


class ManualLoop:
    def __init__(self) -> None:
        self.now = 1000.0
        self.later: list[tuple[float, Callable[..., Any]]] = []

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, call: Callable[..., Any]) -> SimpleNamespace:
        self.later.append((self.now + delay, call))
        return SimpleNamespace(cancel=lambda: None)

    def run_until(self, now: float) -> None:
        self.now = now
        due, self.later = [c for at, c in self.later if at <= now], [e for e in self.later if e[0] > now]
        for call in due:
            call()


class SaslConnection:
    """One connection: its responses and whether it is closed."""

    def __init__(self, session_s: float = 0.0) -> None:
        self.loop = ManualLoop()
        self.metrics = Metrics()
        self.closed = False
        self.frame_min, self.frame_max = FRAME_MIN, FRAME_MAX
        exchanges: dict[str, Callable[[], Exchange]] = {
            "PLAIN": lambda: PlainExchange({"alice": "secret", "bob": "secret"}),
            "SCRAM-SHA-256": lambda: ScramExchange(
                ScramMechanism.SHA_256, lambda mechanism, user: None, bytes(32), random.Random(1)
            ),
        }
        settings = SaslSettings(
            ("PLAIN", "SCRAM-SHA-256"), lambda name: exchanges[name](), {"PLAIN": session_s}, RECEIVE_MAX, 0.1
        )
        services = {
            service.key: service
            for service in (
                Service(
                    ApiKey.API_VERSIONS, (0, 4), lambda context, request: ApiVersionsResponse(), NO_PERMISSION_NEEDED
                ),
                Service(ApiKey.SASL_HANDSHAKE, (0, 1), sasl.handshake, NO_PERMISSION_NEEDED),
                Service(ApiKey.SASL_AUTHENTICATE, (0, 2), sasl.authenticate, NO_PERMISSION_NEEDED),
                Service(
                    ApiKey.DESCRIBE_CLUSTER,
                    (0, 2),
                    lambda context, request: DescribeClusterResponse(cluster_id=str(context.peer.principal)),
                    NO_PERMISSION_NEEDED,
                ),
            )
        }
        dispatcher = Dispatcher(services, lambda version: b"", self.metrics, self.loop)  # type: ignore[arg-type]
        self.counters = AuthenticationCounters(self.metrics, "SASL")
        self.authenticator = Authentication(settings, dispatcher, self.counters, self.loop)  # type: ignore[arg-type]
        self.authenticator.guard(self)  # type: ignore[arg-type]
        self.peer = Peer("SASL", "10.0.0.1")

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def send_request(self, message: Struct, version: int) -> Any:
        frame = memoryview(b"".join(encode_request(message, version, 7, "test"))[4:])
        response: Any = self.authenticator.handle(self.peer, frame)
        self.late = isinstance(response, Deferred)
        if self.late:
            assert response.holds_frame
            self.loop.run_until(self.loop.now + 0.09)
            assert not response.done, "a failure is answered late"
            self.loop.run_until(self.loop.now + 0.2)
            response = response.response
        return decode_response(message.facts.api_key, version, 7, memoryview(b"".join(response))[4:])

    def handshake(self, mechanism: str = "PLAIN", version: int = 1) -> SaslHandshakeResponse:
        return self.send_request(SaslHandshakeRequest(mechanism=mechanism), version)

    def authenticate(self, token: bytes = b"\0alice\0secret", version: int = 2) -> SaslAuthenticateResponse:
        return self.send_request(SaslAuthenticateRequest(auth_bytes=token), version)

    def current_principal(self) -> str:
        return self.send_request(DescribeClusterRequest(), 2).cluster_id

    def log_in(self) -> SaslAuthenticateResponse:
        assert self.handshake().error_code == ErrorCode.NONE
        return self.authenticate()


def test_a_complete_sasl_exchange_authenticates_the_connection() -> None:
    sasl_connection = SaslConnection()
    assert sasl_connection.frame_max == RECEIVE_MAX
    sasl_connection.send_request(ApiVersionsRequest(client_software_name="x", client_software_version="1"), 3)
    handshake = sasl_connection.handshake()
    assert handshake.error_code == ErrorCode.NONE and handshake.mechanisms == ["PLAIN", "SCRAM-SHA-256"]
    response = sasl_connection.authenticate()
    assert (response.error_code, response.auth_bytes, response.session_lifetime_ms) == (ErrorCode.NONE, b"", 0)
    assert sasl_connection.current_principal() == "User:alice"
    assert (sasl_connection.frame_min, sasl_connection.frame_max) == (FRAME_MIN, FRAME_MAX)
    assert sasl_connection.counters.succeeded.value == 1 and not sasl_connection.closed


def test_other_requests_before_authentication_close_the_connection() -> None:
    sasl_connection = SaslConnection()
    with pytest.raises(CloseConnection, match="before SASL authentication"):
        sasl_connection.send_request(DescribeClusterRequest(), 0)
    assert sasl_connection.counters.failed.value == 1


@pytest.mark.parametrize("version", range(5))
def test_api_versions_during_a_sasl_exchange_gets_illegal_sasl_state_and_ends_it(
    version: int, caplog: pytest.LogCaptureFixture
) -> None:
    sasl_connection = SaslConnection()
    sasl_connection.handshake()
    response = sasl_connection.send_request(
        ApiVersionsRequest(client_software_name="x", client_software_version="1"), version
    )
    assert (response.error_code, response.api_keys) == (ErrorCode.ILLEGAL_SASL_STATE, [])
    assert sasl_connection.late and sasl_connection.closed and sasl_connection.counters.failed.value == 1
    assert "ApiVersions after SaslHandshake" in caplog.text


def test_an_unknown_version_of_api_versions_during_a_sasl_exchange_ends_it() -> None:
    sasl_connection = SaslConnection()
    sasl_connection.handshake()
    frame = memoryview(bytes.fromhex("0012006300000001ffff00"))
    late = sasl_connection.authenticator.handle(sasl_connection.peer, frame)
    sasl_connection.loop.run_until(2000.0)
    assert isinstance(late, Deferred) and sasl_connection.closed


def test_other_requests_during_a_sasl_exchange_close_the_connection() -> None:
    sasl_connection = SaslConnection()
    sasl_connection.handshake()
    with pytest.raises(CloseConnection, match="before SASL authentication"):
        sasl_connection.send_request(DescribeClusterRequest(), 0)


def test_wrong_credentials_get_a_delayed_error_and_close_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    sasl_connection = SaslConnection()
    sasl_connection.handshake()
    with caplog.at_level(logging.INFO):
        response = sasl_connection.authenticate(b"\0alice\0guess")
    assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED == 58
    assert response.error_message == "Authentication failed: Invalid username or password"
    assert sasl_connection.late and sasl_connection.closed and sasl_connection.counters.failed.value == 1
    (line,) = [record.getMessage() for record in caplog.records]
    assert "10.0.0.1" in line and "alice" in line and "guess" not in line
    assert sasl_connection.peer.principal.name == "ANONYMOUS"


def test_a_failed_authentication_logs_the_clients_software(caplog: pytest.LogCaptureFixture) -> None:
    sasl_connection = SaslConnection()
    sasl_connection.peer.client_software = "librdkafka 2.5.3"
    sasl_connection.handshake()
    sasl_connection.authenticate(b"\0alice\0guess")
    assert "10.0.0.1 (librdkafka 2.5.3) on SASL" in caplog.text


def test_requests_after_a_failed_authentication_are_not_processed() -> None:
    sasl_connection = SaslConnection()
    sasl_connection.handshake()
    frames = [
        memoryview(b"".join(encode_request(SaslAuthenticateRequest(auth_bytes=token), 2, 1, "x"))[4:])
        for token in (b"\0alice\0wrong", b"\0alice\0secret")
    ]
    answers: list[Any] = [sasl_connection.authenticator.handle(sasl_connection.peer, frame) for frame in frames]
    first, second = answers
    sasl_connection.loop.run_until(2000.0)
    assert first.done and not second.done and second.holds_frame
    assert sasl_connection.peer.principal.name == "ANONYMOUS" and sasl_connection.closed


def test_an_unknown_mechanism_gets_unsupported_sasl_mechanism() -> None:
    sasl_connection = SaslConnection()
    response = sasl_connection.handshake("GSSAPI")
    assert response.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM == 33
    assert response.mechanisms == ["PLAIN", "SCRAM-SHA-256"] and sasl_connection.closed


def test_sasl_requests_in_the_wrong_order_get_illegal_sasl_state() -> None:
    sasl_connection = SaslConnection()
    assert sasl_connection.authenticate().error_code == ErrorCode.ILLEGAL_SASL_STATE == 34
    assert sasl_connection.closed
    sasl_connection = SaslConnection()
    sasl_connection.handshake()
    assert sasl_connection.handshake().error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert sasl_connection.closed


def test_sasl_requests_after_authentication_are_refused_but_keep_the_connection() -> None:
    sasl_connection = SaslConnection()
    sasl_connection.log_in()
    assert sasl_connection.handshake().error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert sasl_connection.authenticate(b"\0bob\0secret").error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert sasl_connection.current_principal() == "User:alice" and not sasl_connection.closed


def test_raw_tokens_are_accepted_after_a_version_0_handshake() -> None:
    sasl_connection = SaslConnection()
    sasl_connection.handshake(version=0)
    assert sasl_connection.frame_min == 0
    assert sasl_connection.authenticator.handle(sasl_connection.peer, memoryview(b"\0alice\0secret")) == [b"\0\0\0\0"]
    assert sasl_connection.current_principal() == "User:alice" and sasl_connection.frame_min == FRAME_MIN
    sasl_connection = SaslConnection()
    sasl_connection.handshake(version=0)
    late = sasl_connection.authenticator.handle(sasl_connection.peer, memoryview(b"\0alice\0wrong"))
    sasl_connection.loop.run_until(2000.0)
    assert isinstance(late, Deferred) and not late.done and sasl_connection.closed


# --- expiring sessions


def test_reauthentication_extends_the_session() -> None:
    sasl_connection = SaslConnection(SESSION_S)
    assert sasl_connection.log_in().session_lifetime_ms == SESSION_S * 1000
    sasl_connection.loop.now += SESSION_S - 1
    assert sasl_connection.current_principal() == "User:alice"
    assert sasl_connection.handshake().error_code == ErrorCode.NONE
    assert sasl_connection.frame_max == RECEIVE_MAX
    assert sasl_connection.authenticate().session_lifetime_ms == SESSION_S * 1000
    sasl_connection.loop.now += SESSION_S - 1
    assert sasl_connection.current_principal() == "User:alice" and sasl_connection.counters.again.value == 1


def test_a_request_in_an_expired_session_closes_the_connection() -> None:
    sasl_connection = SaslConnection(SESSION_S)
    sasl_connection.log_in()
    sasl_connection.loop.now += SESSION_S + 1
    with pytest.raises(CloseConnection, match=r"connections\.max\.reauth\.ms"):
        sasl_connection.current_principal()
    assert sasl_connection.counters.expired.value == 1


def test_an_expired_session_may_reauthenticate_with_its_next_request() -> None:
    sasl_connection = SaslConnection(SESSION_S)
    sasl_connection.log_in()
    sasl_connection.loop.now += SESSION_S + 1
    sasl_connection.log_in()
    assert sasl_connection.current_principal() == "User:alice"


def test_other_requests_during_reauthentication_close_the_connection() -> None:
    sasl_connection = SaslConnection(SESSION_S)
    sasl_connection.log_in()
    sasl_connection.loop.now += 10
    sasl_connection.handshake()
    with pytest.raises(CloseConnection):
        sasl_connection.current_principal()


def test_reauthentication_as_another_principal_is_refused() -> None:
    sasl_connection = SaslConnection(SESSION_S)
    sasl_connection.log_in()
    sasl_connection.loop.now += 10
    sasl_connection.handshake()
    response = sasl_connection.authenticate(b"\0bob\0secret")
    assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "Cannot change principals" in response.error_message
    assert (
        sasl_connection.closed
        and sasl_connection.peer.principal.name == "alice"
        and sasl_connection.counters.again_failed.value == 1
    )


def test_reauthenticating_again_immediately_is_refused() -> None:
    sasl_connection = SaslConnection(SESSION_S)
    sasl_connection.log_in()
    sasl_connection.loop.now += 10
    sasl_connection.log_in()
    assert sasl_connection.handshake().error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert sasl_connection.current_principal() == "User:alice"

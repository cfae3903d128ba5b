"""SASL frame by frame, on a loop with a manual clock: order, limits, failures and expiring sessions."""

import logging
import random
from types import SimpleNamespace

import pytest

from headrace.api import sasl
from headrace.base.errors import ErrorCode
from headrace.base.metrics import Metrics
from headrace.client.wire.frames import decode_response, encode_request
from headrace.protocol.apis import ApiKey
from headrace.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headrace.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest
from headrace.security.credentials import ScramMechanism
from headrace.security.resources import Need, Operation, Resource
from headrace.security.sasl.plain import PlainExchange
from headrace.security.sasl.scram import ScramExchange
from headrace.server.authentication import Authentication, AuthenticationCounters, SaslSettings
from headrace.server.connection import FRAME_MIN
from headrace.server.context import Peer
from headrace.server.dispatch import Dispatcher, Service
from headrace.server.frames import CloseConnection, Deferred

NOTHING = Need(Resource.NONE, Operation.NONE)
FRAME_MAX = 100_000_000
RECEIVE_MAX = 1000
SESSION_S = 60.0


class Loop:
    def __init__(self):
        self.now = 1000.0
        self.later = []

    def time(self):
        return self.now

    def call_later(self, delay, call):
        self.later.append((self.now + delay, call))
        return SimpleNamespace(cancel=lambda: None)

    def run_until(self, now):
        self.now = now
        due, self.later = [c for at, c in self.later if at <= now], [e for e in self.later if e[0] > now]
        for call in due:
            call()


class Door:
    """One connection: its responses and whether it is closed."""

    def __init__(self, session_s=0.0):
        self.loop = Loop()
        self.metrics = Metrics()
        self.closed = False
        self.frame_min, self.frame_max = FRAME_MIN, FRAME_MAX
        exchanges = {
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
                Service(ApiKey.API_VERSIONS, (0, 4), lambda context, request: ApiVersionsResponse(), NOTHING),
                Service(ApiKey.SASL_HANDSHAKE, (0, 1), sasl.handshake, NOTHING),
                Service(ApiKey.SASL_AUTHENTICATE, (0, 2), sasl.authenticate, NOTHING),
                Service(
                    ApiKey.DESCRIBE_CLUSTER,
                    (0, 2),
                    lambda context, request: DescribeClusterResponse(cluster_id=str(context.peer.principal)),
                    NOTHING,
                ),
            )
        }
        dispatcher = Dispatcher(services, lambda version: b"", self.metrics, self.loop)
        self.counters = AuthenticationCounters(self.metrics, "SASL")
        self.gate = Authentication(settings, dispatcher, self.counters, self.loop)
        self.gate.guard(self)
        self.peer = Peer("SASL", "10.0.0.1")

    def flush(self):
        pass

    def close(self):
        self.closed = True

    def ask(self, message, version):
        frame = memoryview(b"".join(encode_request(message, version, 7, "test"))[4:])
        answer = self.gate.handle(self.peer, frame)
        self.late = isinstance(answer, Deferred)
        if self.late:
            assert answer.holds_frame
            self.loop.run_until(self.loop.now + 0.09)
            assert not answer.done, "a failure is answered late"
            self.loop.run_until(self.loop.now + 0.2)
            answer = answer.answer
        return decode_response(message.facts.api_key, version, 7, memoryview(b"".join(answer))[4:])

    def handshake(self, mechanism="PLAIN", version=1):
        return self.ask(SaslHandshakeRequest(mechanism=mechanism), version)

    def authenticate(self, token=b"\0alice\0secret", version=2):
        return self.ask(SaslAuthenticateRequest(auth_bytes=token), version)

    def who(self):
        return self.ask(DescribeClusterRequest(), 2).cluster_id

    def log_in(self):
        assert self.handshake().error_code == ErrorCode.NONE
        return self.authenticate()


def test_versions_handshake_tokens_and_then_everything():
    door = Door()
    assert door.frame_max == RECEIVE_MAX
    door.ask(ApiVersionsRequest(client_software_name="x", client_software_version="1"), 3)
    answer = door.handshake()
    assert answer.error_code == ErrorCode.NONE and answer.mechanisms == ["PLAIN", "SCRAM-SHA-256"]
    answer = door.authenticate()
    assert (answer.error_code, answer.auth_bytes, answer.session_lifetime_ms) == (ErrorCode.NONE, b"", 0)
    assert door.who() == "User:alice"
    assert (door.frame_min, door.frame_max) == (FRAME_MIN, FRAME_MAX)
    assert door.counters.succeeded.value == 1 and not door.closed


def test_nothing_else_is_answered_before():
    door = Door()
    with pytest.raises(CloseConnection, match="before SASL authentication"):
        door.ask(DescribeClusterRequest(), 0)
    assert door.counters.failed.value == 1


@pytest.mark.parametrize("version", range(5))
def test_versions_in_the_middle_of_an_exchange_are_34_and_end_it(version, caplog):
    door = Door()
    door.handshake()
    answer = door.ask(ApiVersionsRequest(client_software_name="x", client_software_version="1"), version)
    assert (answer.error_code, answer.api_keys) == (ErrorCode.ILLEGAL_SASL_STATE, [])
    assert door.late and door.closed and door.counters.failed.value == 1
    assert "ApiVersions after SaslHandshake" in caplog.text


def test_versions_of_an_unknown_version_in_the_middle_of_an_exchange_end_it():
    door = Door()
    door.handshake()
    frame = memoryview(bytes.fromhex("0012006300000001ffff00"))
    late = door.gate.handle(door.peer, frame)
    door.loop.run_until(2000.0)
    assert isinstance(late, Deferred) and door.closed


def test_anything_else_in_the_middle_of_an_exchange_ends_it():
    door = Door()
    door.handshake()
    with pytest.raises(CloseConnection, match="before SASL authentication"):
        door.ask(DescribeClusterRequest(), 0)


def test_wrong_credentials_are_answered_with_58_late_and_end_the_connection(caplog):
    door = Door()
    door.handshake()
    with caplog.at_level(logging.INFO):
        answer = door.authenticate(b"\0alice\0guess")
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED == 58
    assert answer.error_message == "Authentication failed: Invalid username or password"
    assert door.late and door.closed and door.counters.failed.value == 1
    (line,) = [record.getMessage() for record in caplog.records]
    assert "10.0.0.1" in line and "alice" in line and "guess" not in line
    assert door.peer.principal.name == "ANONYMOUS"


def test_a_failure_names_the_clients_software(caplog):
    door = Door()
    door.peer.client_software = "librdkafka 2.5.3"
    door.handshake()
    door.authenticate(b"\0alice\0guess")
    assert "10.0.0.1 (librdkafka 2.5.3) on SASL" in caplog.text


def test_after_a_failure_nothing_is_looked_at():
    door = Door()
    door.handshake()
    frames = [
        memoryview(b"".join(encode_request(SaslAuthenticateRequest(auth_bytes=token), 2, 1, "x"))[4:])
        for token in (b"\0alice\0wrong", b"\0alice\0secret")
    ]
    first, second = (door.gate.handle(door.peer, frame) for frame in frames)
    door.loop.run_until(2000.0)
    assert first.done and not second.done and second.holds_frame
    assert door.peer.principal.name == "ANONYMOUS" and door.closed


def test_an_unknown_mechanism_is_33():
    door = Door()
    answer = door.handshake("GSSAPI")
    assert answer.error_code == ErrorCode.UNSUPPORTED_SASL_MECHANISM == 33
    assert answer.mechanisms == ["PLAIN", "SCRAM-SHA-256"] and door.closed


def test_the_wrong_order_is_34():
    door = Door()
    assert door.authenticate().error_code == ErrorCode.ILLEGAL_SASL_STATE == 34
    assert door.closed
    door = Door()
    door.handshake()
    assert door.handshake().error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert door.closed


def test_once_known_the_two_requests_are_errors_but_harmless():
    door = Door()
    door.log_in()
    assert door.handshake().error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert door.authenticate(b"\0bob\0secret").error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert door.who() == "User:alice" and not door.closed


def test_bare_tokens_after_a_handshake_of_version_0():
    door = Door()
    door.handshake(version=0)
    assert door.frame_min == 0
    assert door.gate.handle(door.peer, memoryview(b"\0alice\0secret")) == [b"\0\0\0\0"]
    assert door.who() == "User:alice" and door.frame_min == FRAME_MIN
    door = Door()
    door.handshake(version=0)
    late = door.gate.handle(door.peer, memoryview(b"\0alice\0wrong"))
    door.loop.run_until(2000.0)
    assert isinstance(late, Deferred) and not late.done and door.closed


# --- expiring sessions


def test_a_session_that_is_renewed_goes_on():
    door = Door(SESSION_S)
    assert door.log_in().session_lifetime_ms == SESSION_S * 1000
    door.loop.now += SESSION_S - 1
    assert door.who() == "User:alice"
    assert door.handshake().error_code == ErrorCode.NONE
    assert door.frame_max == RECEIVE_MAX
    assert door.authenticate().session_lifetime_ms == SESSION_S * 1000
    door.loop.now += SESSION_S - 1
    assert door.who() == "User:alice" and door.counters.again.value == 1


def test_a_session_that_ended_ends_the_connection():
    door = Door(SESSION_S)
    door.log_in()
    door.loop.now += SESSION_S + 1
    with pytest.raises(CloseConnection, match=r"connections\.max\.reauth\.ms"):
        door.who()
    assert door.counters.expired.value == 1


def test_a_session_that_ended_may_still_be_renewed_with_its_next_request():
    door = Door(SESSION_S)
    door.log_in()
    door.loop.now += SESSION_S + 1
    door.log_in()
    assert door.who() == "User:alice"


def test_in_the_middle_of_a_renewal_nothing_else_is_answered():
    door = Door(SESSION_S)
    door.log_in()
    door.loop.now += 10
    door.handshake()
    with pytest.raises(CloseConnection):
        door.who()


def test_nobody_becomes_somebody_else():
    door = Door(SESSION_S)
    door.log_in()
    door.loop.now += 10
    door.handshake()
    answer = door.authenticate(b"\0bob\0secret")
    assert answer.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED
    assert "Cannot change principals" in answer.error_message
    assert door.closed and door.peer.principal.name == "alice" and door.counters.again_failed.value == 1


def test_renewing_all_the_time_is_refused():
    door = Door(SESSION_S)
    door.log_in()
    door.loop.now += 10
    door.log_in()
    assert door.handshake().error_code == ErrorCode.ILLEGAL_SASL_STATE
    assert door.who() == "User:alice"

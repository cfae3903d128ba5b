"""Security settings: errors, warnings and per-listener overrides by name; and the listeners of a real node."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import Iterator, Mapping
from struct import pack
from typing import Any

import pytest
from tests.security.plain_logins import login, server_settings

from headrace.base.errors import ConfigError, ErrorCode
from headrace.client.wire.connection import Connection
from headrace.client.wire.frames import decode_response, encode_request
from headrace.node.configuration.settings import Settings, make_settings
from headrace.node.security import SecurityOfListeners, check_security, make_authorizer, tls_settings
from headrace.protocol.declare import Struct
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResponse
from headrace.protocol.messages.sasl_authenticate import SaslAuthenticateRequest
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest
from headrace.security.principals import Principal
from headrace.security.resources import Operation, Resource
from headrace.server.authority import ALLOW_ALL
from headrace.server.listener import Security
from headrace.testing.cluster import LOOPBACK, EmbeddedNode

STANDARD = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
PLAIN = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="geheim";'
TLS = {"listeners": "SSL://:9092", "ssl.keystore.type": "PEM", "ssl.keystore.location": "/nowhere.pem"}
SASL = {"listeners": "SASL_PLAINTEXT://:9092"}


def settings(given: Mapping[str, str]) -> Settings:
    return make_settings(given, single_node=True)


def securities(given: Mapping[str, str]) -> dict[str, Security]:
    made = settings(given)
    check_security(made)
    maker = SecurityOfListeners(made, lambda: 0, random.Random(1), lambda mechanism, user: None, ALLOW_ALL)
    return {address.name: maker.of(address) for address in made.broker_listeners}


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({**TLS, "ssl.keystore.type": "JKS"}, r"ssl\.keystore\.type=JKS .*ssl\.keystore\.type=PEM"),
        ({"listeners": "SSL://:9092", "ssl.keystore.location": "x.jks"}, r"JKS"),
        ({**TLS, "ssl.keystore.type": "PKCS12"}, r"ssl\.keystore\.type=PKCS12"),
        ({**TLS, "ssl.truststore.location": "x.jks"}, r"ssl\.truststore\.type=JKS"),
        ({**TLS, "ssl.keystore.password": "geheim"}, r"ssl\.keystore\.password"),
        ({**TLS}, r"ssl\.keystore\.location=/nowhere\.pem"),
        ({"listeners": "SSL://:9092", "ssl.keystore.type": "PEM"}, r"certificate and its private key"),
        ({**TLS, "ssl.client.auth": "required"}, r"ssl\.client\.auth=required .*ssl\.truststore"),
        ({**TLS, "ssl.cipher.suites": "TLS_NONSENSE"}, r"ssl\.cipher\.suites"),
        ({**TLS, "ssl.enabled.protocols": "TLSv1.2", "ssl.cipher.suites": "TLS_AES_128_GCM_SHA256"}, "exclude every version of TLS"),
        ({**TLS, "ssl.principal.mapping.rules": "RULE:x"}, r"ssl\.principal\.mapping\.rules"),
        ({**TLS, "ssl.engine.factory.class": "x.Y"}, r"ssl\.engine\.factory\.class"),
        (SASL, r"GSSAPI is not supported"),
        ({**SASL, "sasl.enabled.mechanisms": "OAUTHBEARER"}, r"OAUTHBEARER is not supported"),
        ({**SASL, "sasl.enabled.mechanisms": "PLAIN"}, r"listener\.name\.sasl_plaintext\.plain\.sasl\.jaas\.config"),
        (
            {**SASL, "sasl.enabled.mechanisms": "PLAIN", "listener.name.sasl_plaintext.plain.sasl.jaas.config": "x.Y required;"},
            "PlainLoginModule",
        ),
        (
            {
                **SASL,
                "sasl.enabled.mechanisms": "SCRAM-SHA-256",
                "listener.name.sasl_plaintext.scram-sha-256.sasl.server.callback.handler.class": "x.Y",
            },
            r"sasl\.server\.callback\.handler\.class",
        ),
        ({"principal.builder.class": "x.Y"}, r"principal\.builder\.class"),
        ({"delegation.token.secret.key": "geheim"}, r"delegation\.token\.secret\.key"),
    ],
)  # fmt: skip
def test_unsupported_security_options_are_named_in_the_error(given: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named) as error:
        securities(given)
    assert "geheim" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"listeners": "EXTERNAL://:9092"}, r"listener\.security\.protocol\.map"),
        ({"listener.security.protocol.map": "PLAINTEXT:QUIC"}, r"listener\.security\.protocol\.map"),
        ({**TLS, "ssl.client.auth": "maybe"}, r"ssl\.client\.auth"),
        ({**TLS, "ssl.enabled.protocols": "SSLv3"}, r"ssl\.enabled\.protocols"),
        ({**TLS, "listener.name.ssl.ssl.client.auth": "maybe"}, r"ssl\.client\.auth"),
    ],
)
def test_invalid_security_values_are_named_in_the_error(given: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        settings(given)


@pytest.mark.parametrize("secured", ["SSL", "SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("also", ["", "PLAINTEXT://:9092,"])
def test_a_controller_listener_needs_a_mapped_protocol_if_any_listener_is_secured(secured: str, also: str) -> None:
    """Check Kafka's rule: the default is PLAINTEXT only if no listener is secured."""
    given = {"listeners": f"{also}{secured}://:9094,CONTROLLER://:9093", "controller.listener.names": "CONTROLLER"}
    with pytest.raises(ConfigError, match=r"CONTROLLER .*listener\.security\.protocol\.map"):
        settings(given)
    mapped = settings(
        {**given, "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,{secured}:{secured},CONTROLLER:SSL"}
    )
    assert mapped.protocols["CONTROLLER"] == "SSL"


@pytest.mark.parametrize(
    ("listeners", "names", "protocols"),
    [
        ("PLAINTEXT://:9092,CONTROLLER://:9093", "CONTROLLER", {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}),
        ("PLAINTEXT://:9092,SSL://:9093", "SSL", {"PLAINTEXT": "PLAINTEXT", "SSL": "SSL"}),
        ("SASL_SSL://:9092,SSL://:9093", "SSL", {"SASL_SSL": "SASL_SSL", "SSL": "SSL"}),
    ],
)
def test_listeners_have_kafkas_default_security_protocols(
    listeners: str, names: str, protocols: dict[str, str]
) -> None:
    assert settings({"listeners": listeners, "controller.listener.names": names}).protocols == protocols


@pytest.mark.parametrize(
    ("more", "is_open"), [({}, True), ({"authorizer.class.name": STANDARD, "super.users": "User:a"}, False)]
)
def test_an_open_controller_listener_logs_a_warning_if_clients_must_log_in(
    more: dict[str, str], is_open: bool, caplog: pytest.LogCaptureFixture
) -> None:
    given = {
        "listeners": "EXTERNAL://:9092,CONTROLLER://:9093",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "EXTERNAL:SASL_SSL,CONTROLLER:PLAINTEXT",
    }
    check_security(settings({**given, **more}))
    assert ("CONTROLLER is PLAINTEXT" in caplog.text) is is_open


def test_make_authorizer_checks_its_class_name_and_super_users() -> None:
    assert make_authorizer(settings({})) is None
    with pytest.raises(ConfigError, match=r"x\.Y is not supported; write org\.apache"):
        make_authorizer(settings({"authorizer.class.name": "x.Y"}))
    with pytest.raises(ConfigError, match=r"super\.users"):
        make_authorizer(settings({"authorizer.class.name": STANDARD, "super.users": "alice"}))
    given = {"authorizer.class.name": STANDARD, "super.users": "User:a;User:CN=b,O=c"}
    made = make_authorizer(settings(given))
    for name, allowed in (("a", True), ("CN=b,O=c", True), ("b", False)):
        rule = made.decide(Principal("User", name), "::1", Operation.ALTER, Resource.CLUSTER, "kafka-cluster")
        assert rule.allowed is allowed


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"super.users": "User:a"}, "super.users has no effect"),
        ({"sasl.jaas.config": PLAIN}, "sasl.jaas.config has no effect"),
        ({"ssl.provider": "x"}, "ssl.provider has no effect"),
        ({"listener.name.other.ssl.keystore.type": "PEM"}, "there is no listener OTHER"),
        ({"listener.name.plaintext.num.partitions": "3"}, "listener.name.plaintext.num.partitions is no known option"),
    ],
)
def test_security_options_without_effect_log_a_warning(
    given: dict[str, str], named: str, caplog: pytest.LogCaptureFixture
) -> None:
    made = settings(given)
    check_security(made)
    make_authorizer(made)
    assert named in caplog.text and "geheim" not in caplog.text


def test_listener_options_override_general_ones() -> None:
    made = settings(
        {
            "listeners": "A://:1,B://:2",
            "listener.security.protocol.map": "A:SSL,B:SASL_SSL",
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": "/all.pem",
            "listener.name.b.ssl.keystore.location": "/b.pem",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": "/trusted.pem",
            "ssl.client.auth": "required",
            "ssl.cipher.suites": "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
        }
    )
    a, b = tls_settings(made, "A"), tls_settings(made, "B")
    assert (a.keystore, a.client_auth, b.keystore, b.client_auth) == ("/all.pem", "required", "/b.pem", "none")
    assert (a.protocols, a.ciphers) == (("TLSv1.2",), ("ECDHE-RSA-AES256-GCM-SHA384",))
    assert [endpoint.security_protocol for endpoint in made.endpoints({})] == [1, 3]


def test_connections_max_reauth_ms_can_differ_by_mechanism() -> None:
    given = {
        **SASL,
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": PLAIN,
        "connections.max.reauth.ms": "5000",
        "listener.name.sasl_plaintext.plain.connections.max.reauth.ms": "1000",
    }
    sasl = securities(given)["SASL_PLAINTEXT"].sasl
    assert sasl.session_s == {"PLAIN": 1.0, "SCRAM-SHA-256": 5.0}


# --- a real node


@pytest.fixture(scope="module")
def secured_node() -> Iterator[EmbeddedNode]:
    given = {**server_settings("alice"), "sasl.server.max.receive.size": "1000", "ssl.key.password": "geheim"}
    with EmbeddedNode(given) as node:
        yield node


class RawClient:
    def __init__(self, node: EmbeddedNode) -> None:
        self.socket = socket.create_connection((LOOPBACK, node.node.ports["SASL_PLAINTEXT"]), 10)

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def exchange(self, message: Struct, version: int) -> Any:
        self.send(b"".join(encode_request(message, version, 1, "test")))
        size = int.from_bytes(self.receive(4), "big")
        return decode_response(message.facts.api_key, version, 1, memoryview(self.receive(size)))

    def receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self.socket.recv(size - len(data))
            assert more, "closed"
            data += more
        return data

    def is_closed(self) -> bool:
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True


def test_an_oversized_sasl_frame_closes_the_connection_before_it_is_read(secured_node: EmbeddedNode) -> None:
    raw_client = RawClient(secured_node)
    raw_client.exchange(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    raw_client.send(pack(">i", 1001))
    assert raw_client.is_closed()
    raw_client = RawClient(secured_node)
    raw_client.send(pack(">i", 100_000_000))
    assert raw_client.is_closed()


def test_a_failed_login_gets_an_error_response_and_closes_the_connection(
    secured_node: EmbeddedNode, caplog: pytest.LogCaptureFixture
) -> None:
    raw_client = RawClient(secured_node)
    raw_client.exchange(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    with caplog.at_level(logging.WARNING):
        response = raw_client.exchange(SaslAuthenticateRequest(auth_bytes=b"\0alice\0wrong"), 2)
        assert response.error_code == ErrorCode.SASL_AUTHENTICATION_FAILED and raw_client.is_closed()
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("headrace")]
    assert len(lines) == 1 and "alice" in lines[0] and "wrong user" in lines[0]


def test_an_authenticated_user_may_send_larger_requests_but_needs_permissions(
    secured_node: EmbeddedNode, caplog: pytest.LogCaptureFixture
) -> None:
    raw_client = RawClient(secured_node)
    raw_client.exchange(SaslHandshakeRequest(mechanism="PLAIN"), 1)
    assert raw_client.exchange(SaslAuthenticateRequest(auth_bytes=b"\0alice\0geheim"), 2).error_code == ErrorCode.NONE
    topic = CreateTopicsRequest.CreatableTopic
    names = [f"{'x' * 100}-{number}" for number in range(20)]
    with caplog.at_level(logging.INFO, "kafka.authorizer.logger"):
        response = raw_client.exchange(CreateTopicsRequest(topics=[topic(name=n, num_partitions=1) for n in names]), 7)
    assert {result.error_code for result in response.topics} == {ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    audit = [record.getMessage() for record in caplog.records if record.name == "kafka.authorizer.logger"]
    assert (
        f"Principal = User:alice is Denied operation = CREATE from host = 127.0.0.1 on resource = Topic:LITERAL:{names[0]}"
        " for request = CreateTopics with resourceRefCount = 1 based on rule DefaultDeny"
    ) in audit


def test_describe_configs_does_not_reveal_secrets(secured_node: EmbeddedNode) -> None:
    async def run() -> DescribeConfigsResponse:
        connection = await Connection.connect(LOOPBACK, secured_node.port, security=login("admin"))
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=4, resource_name="1", configuration_keys=None
        )
        response = await connection.request(
            DescribeConfigsRequest(resources=[resource], include_synonyms=True, include_documentation=True), version=4
        )
        await connection.close()
        return response

    response = asyncio.run(run())
    assert response.results[0].configs and "geheim" not in str(response)


def test_allowed_operations_are_audited_at_debug_level(
    secured_node: EmbeddedNode, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        connection = await Connection.connect(LOOPBACK, secured_node.port, security=login("admin"))
        topic = CreateTopicsRequest.CreatableTopic(name="audited", num_partitions=1, replication_factor=1)
        await connection.request(CreateTopicsRequest(topics=[topic], validate_only=True), version=7)
        await connection.close()

    with caplog.at_level(logging.DEBUG, "kafka.authorizer.logger"):
        asyncio.run(run())
    assert "Principal = User:admin is Allowed operation = CREATE" in caplog.text
    assert "based on rule SuperUser" in caplog.text

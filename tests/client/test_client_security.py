"""Our client over TLS and SASL on a real node: who is let in, who is not, and the errors."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

import pytest
from tests.security.pem_files import Authority, needs_openssl

from headrace.base.errors import ConfigError, ErrorCode, KafkaError
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.connection import Connection, Disconnected, NoResponse
from headrace.client.wire.frames import UnexpectedResponse
from headrace.client.wire.options import CLIENT_OPTIONS
from headrace.client.wire.security import ClientSecurity, make_security
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.testing.cluster import LOOPBACK, EmbeddedNode

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"

pytestmark = needs_openssl


def security(**given: Any) -> ClientSecurity:
    values = {name: option.default for name, option in CLIENT_OPTIONS.items()}
    values |= {name.replace("_", "."): value for name, value in given.items()}
    return make_security(values, random.Random(3))


def login(user: str, password: str, module: str = PLAIN) -> str:
    return f'{module} required username="{user}" password="{password}";'


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("pem"))


@pytest.fixture(scope="module")
def node(authority: Authority) -> Iterator[EmbeddedNode]:
    _, _, store = authority.issue("server", "/CN=localhost")
    listeners = ["PLAINTEXT", "SSL", "MUTUAL", "SASL_SSL", "SASL_PLAINTEXT"]
    settings = {
        "listeners": ",".join(f"{name}://{LOOPBACK}:0" for name in listeners),
        "listener.security.protocol.map": ",".join(f"{name}:{name.replace('MUTUAL', 'SSL')}" for name in listeners),
        "inter.broker.listener.name": "PLAINTEXT",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.certificate),
        "listener.name.mutual.ssl.client.auth": "required",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.sasl_ssl.plain.sasl.jaas.config": f'{PLAIN} required user_alice="geheim";',
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": f'{PLAIN} required user_alice="geheim";',
        "listener.name.sasl_plaintext.connections.max.reauth.ms": "300",
    }
    with EmbeddedNode(settings) as one:
        yield one


def count_brokers(node: EmbeddedNode, listener: str, how: ClientSecurity, host: str = LOOPBACK) -> int:
    async def work() -> int:
        async with Cluster([(host, node.node.ports[listener])], timeout_s=5.0, security=how) as cluster:
            return len((await cluster.refresh([])).brokers)

    return asyncio.run(work())


def test_tls_requires_a_trusted_broker_certificate(node: EmbeddedNode, authority: Authority) -> None:
    trusted = str(authority.certificate)
    assert count_brokers(node, "SSL", security(security_protocol="SSL", ssl_truststore_location=trusted)) == 1
    inline = security(
        security_protocol="SSL", ssl_truststore_certificates=authority.certificate.read_text().replace("\n", " ")
    )
    assert count_brokers(node, "SSL", inline, host="localhost") == 1
    with pytest.raises(Disconnected, match="not trusted"):
        count_brokers(node, "SSL", security(security_protocol="SSL"))


def test_the_host_name_of_the_broker_is_verified_unless_disabled(node: EmbeddedNode, authority: Authority) -> None:
    trusted = str(authority.certificate)
    with pytest.raises(Disconnected, match="not trusted"):
        count_brokers(node, "SSL", security(security_protocol="SSL", ssl_truststore_location=trusted), host="127.1")
    unchecked = security(
        security_protocol="SSL", ssl_truststore_location=trusted, ssl_endpoint_identification_algorithm=""
    )
    assert count_brokers(node, "SSL", unchecked, host="127.1") == 1  # a name for this host that the certificate lacks


def test_mutual_tls_requires_a_client_certificate(node: EmbeddedNode, authority: Authority) -> None:
    key, chain, store = authority.issue("client", "/CN=client", password="pass")
    trusted = str(authority.certificate)
    both = {"security_protocol": "SSL", "ssl_truststore_location": trusted}
    assert (
        count_brokers(node, "MUTUAL", security(**both, ssl_keystore_location=str(store), ssl_key_password="pass")) == 1
    )
    inline = {"ssl_keystore_key": key.read_text(), "ssl_keystore_certificate_chain": chain.read_text()}
    assert count_brokers(node, "MUTUAL", security(**both, **inline, ssl_key_password="pass")) == 1
    with pytest.raises((Disconnected, OSError)):
        count_brokers(node, "MUTUAL", security(**both))
    with pytest.raises(ConfigError, match=r"ssl\.key\.password"):
        security(**both, ssl_keystore_location=str(store))


def test_sasl_login_needs_valid_credentials_and_an_offered_mechanism(node: EmbeddedNode, authority: Authority) -> None:
    trusted = str(authority.certificate)
    both = {"security_protocol": "SASL_SSL", "ssl_truststore_location": trusted, "sasl_mechanism": "PLAIN"}
    assert count_brokers(node, "SASL_SSL", security(**both, sasl_jaas_config=login("alice", "geheim"))) == 1
    for user, password in (("alice", "falsch"), ("nobody", "geheim")):
        with pytest.raises(KafkaError) as caught:
            count_brokers(node, "SASL_SSL", security(**both, sasl_jaas_config=login(user, password)))
        assert caught.value.code == ErrorCode.SASL_AUTHENTICATION_FAILED and password not in str(caught.value)
    unknown = security(
        security_protocol="SASL_PLAINTEXT", sasl_mechanism="SCRAM-SHA-256", sasl_jaas_config=login("bob", "x", SCRAM)
    )
    with pytest.raises(KafkaError, match="SASL_AUTHENTICATION_FAILED"):
        count_brokers(node, "SASL_PLAINTEXT", unknown)
    with pytest.raises(KafkaError, match=r"SCRAM-SHA-512 is not offered; the broker has PLAIN, SCRAM-SHA-256"):
        other = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "SCRAM-SHA-512"}
        count_brokers(node, "SASL_PLAINTEXT", security(**other, sasl_jaas_config=login("bob", "x", SCRAM)))


def test_an_expiring_login_is_renewed_by_a_new_connection(node: EmbeddedNode) -> None:
    how = security(
        security_protocol="SASL_PLAINTEXT", sasl_mechanism="PLAIN", sasl_jaas_config=login("alice", "geheim")
    )

    async def work() -> None:
        async with Cluster([(LOOPBACK, node.node.ports["SASL_PLAINTEXT"])], security=how) as cluster:
            first = await cluster.any_broker()
            assert first.is_open
            while first.is_open:
                await asyncio.sleep(0.01)
            pending = first.send(MetadataRequest(topics=[]), first.version_for(MetadataRequest))
            second = await cluster.any_broker()  # the old one closes after its last response
            assert second is not first and (await pending).brokers
            assert (await cluster.refresh([])).brokers

    asyncio.run(work())


def test_connecting_with_the_wrong_security_protocol_fails(node: EmbeddedNode) -> None:
    with pytest.raises(Disconnected, match="it may speak TLS"):
        count_brokers(node, "SSL", security())
    with pytest.raises((Disconnected, NoResponse)):
        count_brokers(node, "SASL_PLAINTEXT", security())


def test_a_tls_alert_raises_unexpected_answer() -> None:
    async def alert(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4)
        writer.write(bytes.fromhex("15030300020246"))

    async def work() -> None:
        server = await asyncio.start_server(alert, LOOPBACK, 0)
        with pytest.raises(UnexpectedResponse, match="speaks TLS"):
            await Connection.connect(LOOPBACK, server.sockets[0].getsockname()[1], timeout_s=5)
        server.close()

    asyncio.run(work())


def test_a_silent_broker_raises_disconnected_after_the_timeout() -> None:
    async def work() -> None:
        server = await asyncio.start_server(lambda reader, writer: None, LOOPBACK, 0)
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(Disconnected, match="timed out"):
            await Connection.connect(LOOPBACK, port, timeout_s=0.05)
        server.close()

    asyncio.run(work())


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"security_protocol": "SASL_SSL"}, r"sasl\.mechanism=GSSAPI"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN"}, r"sasl\.jaas\.config must say"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_jaas_config": login("a", "geheim", SCRAM)}, "PlainLogin"),
        ({"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_jaas_config": f"{PLAIN} required;"}, "username"),
        ({"security_protocol": "SSL", "ssl_truststore_location": "/nowhere"}, r"ssl\.truststore\.location=/nowhere"),
        ({"security_protocol": "SSL", "ssl_truststore_location": __file__}, "no PEM block"),
        ({"security_protocol": "SSL", "ssl_cipher_suites": ["NONSENSE"]}, r"ssl\.cipher\.suites"),
        ({"security_protocol": "SSL", "ssl_endpoint_identification_algorithm": "x"}, "https"),
    ],
)  # fmt: skip
def test_unusable_security_options_are_named_in_the_error(given: dict[str, list[str] | str], named: str) -> None:
    with pytest.raises(ConfigError, match=named) as caught:
        security(**given)
    assert "geheim" not in str(caught.value)

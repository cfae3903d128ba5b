"""The samples of docs/security.md are complete: a node starts from each, without warnings, and requires logins."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from tests.security.pem_files import needs_openssl
from tools.prove.security.secured_files import SecuredFiles, SecuredNode, server_files

from headrace.base.errors import KafkaError
from headrace.client import Admin, Consumer, Producer
from headrace.client.wire.connection import Connection, Disconnected
from headrace.client.wire.options import CLIENT_OPTIONS
from headrace.client.wire.security import make_security
from headrace.protocol.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest

pytestmark = needs_openssl
WAIT_S = 20
PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


@pytest.fixture
def files(tmp_path: Path) -> SecuredFiles:
    return SecuredFiles(tmp_path)


def test_security_md_contains_three_server_files() -> None:
    assert server_files() == ["server.properties", "tls.properties", "sasl.properties"]


@pytest.mark.parametrize("name", server_files())
def test_a_node_starts_from_each_file_and_refuses_unauthenticated_clients(files: SecuredFiles, name: str) -> None:
    with SecuredNode(files, name) as node:
        ports = [files.port, files.controller_port] if "CONTROLLER://" in files.file(name).read_text() else [files.port]
        for port in ports:
            for tls in (False, True):
                with pytest.raises(Disconnected):
                    asyncio.run(request_without_login(files, port, tls))
        log = node.log_text()
        assert not [
            line for line in log.splitlines() if "no effect" in line or "is not used" in line or " ERROR " in line
        ]


async def request_without_login(files: SecuredFiles, port: int, tls: bool) -> None:
    values = {name: option.default for name, option in CLIENT_OPTIONS.items()}
    if tls:
        values |= {"security.protocol": "SSL", "ssl.truststore.location": str(files.authority)}
    connection = await Connection.connect(
        "localhost", port, timeout_s=10, security=make_security(values, random.Random(1))
    )
    try:
        await asyncio.wait_for(connection.request(DescribeUserScramCredentialsRequest(users=None)), 10)
    finally:
        await connection.close()


def test_the_documented_scram_user_has_only_the_documented_permissions(files: SecuredFiles) -> None:
    files.run("format")
    with SecuredNode(files):
        files.run("users")
        alice = files.properties("alice.properties")
        with Producer({**alice, "transactional.id": "billing"}) as producer:
            producer.transaction.init()
            producer.transaction.begin()
            producer.send("orders", b"1").result(WAIT_S)
            producer.transaction.commit()
        with Consumer({**alice, "group.id": "billing", "auto.offset.reset": "earliest"}) as consumer:
            consumer.subscribe(["orders"])
            assert [record.value for record in consumer.poll(WAIT_S)] == [b"1"]
        with Admin(alice) as admin, pytest.raises(KafkaError, match="CLUSTER_AUTHORIZATION_FAILED"):
            admin.describe_acls()


def test_the_documented_plain_user_can_log_in(files: SecuredFiles) -> None:
    login = f'{PLAIN} required username="bob" password="bob-secret";'
    with SecuredNode(files, "sasl.properties"):
        options = {**files.properties("alice.properties"), "sasl.mechanism": "PLAIN", "sasl.jaas.config": login}
        with Admin(options) as admin:
            assert admin.list_topics() == []


def test_a_documented_certificate_authenticates_a_client(files: SecuredFiles) -> None:
    options = {
        "bootstrap.servers": f"localhost:{files.port}",
        "security.protocol": "SSL",
        "ssl.truststore.location": str(files.authority),
        "ssl.keystore.location": str(files.file("server.pem")),
    }
    with SecuredNode(files, "tls.properties"), Admin(options) as admin:
        assert admin.list_topics() == []

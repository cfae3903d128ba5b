"""ACLs on the command line, with a node that enforces them, and commands that log in over TLS."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command_line import CommandLine
from tests.security.pem_files import Authority, needs_openssl
from tests.security.plain_logins import login_options, server_settings

from headrace.testing.cluster import LOOPBACK, EmbeddedNode

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[EmbeddedNode, Authority, CommandLine]]:
    """Yield a node, its certificate authority, and the command line as `admin`, the only super user."""
    pem = tmp_path_factory.mktemp("pem")
    authority = Authority(pem)
    logins = server_settings()
    settings = {
        **logins,
        "listeners": f"{logins['listeners']},SASL_SSL://{LOOPBACK}:0",
        "listener.security.protocol.map": f"{logins['listener.security.protocol.map']},SASL_SSL:SASL_SSL",
        "listener.name.sasl_ssl.sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(authority.issue("server", "/CN=localhost")[2]),
    }
    config = pem / "admin.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in login_options("admin").items()))
    with EmbeddedNode(settings) as node:
        yield node, authority, CommandLine(node.bootstrap, config)


pytestmark = needs_openssl


def list_acls(headrace: CommandLine, *arguments: str) -> set[tuple[str, str, str, str, str]]:
    found = json.loads(headrace("acls", "list", *arguments, "--json"))
    return {
        (one["resource_type"], one["resource_name"], one["principal"], one["operation"], one["permission"])
        for one in found
    }


def test_acls_are_added_listed_and_removed(secured: tuple[EmbeddedNode, Authority, CommandLine]) -> None:
    _, _, headrace = secured
    headrace(
        "acls",
        "add",
        "--allow-principal",
        "User:a",
        "--operation",
        "Read",
        "--operation",
        "describe-configs",
        "--topic",
        "t",
    )
    headrace("acls", "add", "--deny-principal", "User:b", "--deny-host", "10.0.0.1", "--cluster")
    headrace(
        "acls", "add", "--allow-principal", "User:c", "--producer", "--consumer", "--idempotent", "--topic", "pre-",
        "--group", "g", "--resource-pattern-type", "prefixed",
    )  # fmt: skip
    assert list_acls(headrace, "--topic", "t") == {
        ("TOPIC", "t", "User:a", "READ", "ALLOW"),
        ("TOPIC", "t", "User:a", "DESCRIBE_CONFIGS", "ALLOW"),
    }
    assert list_acls(headrace, "--principal", "User:b") == {("CLUSTER", "kafka-cluster", "User:b", "ALL", "DENY")}
    assert {one[3] for one in list_acls(headrace, "--topic", "pre-x", "--resource-pattern-type", "match")} == {
        "READ", "WRITE", "CREATE", "DESCRIBE",
    }  # fmt: skip
    assert len(list_acls(headrace)) == 9 and "10.0.0.1" in headrace("acls", "list")
    assert "INVALID_REQUEST" in headrace("acls", "add", "--allow-principal", "nobody", "--topic", "t", fails=True)
    headrace("acls", "remove", "--allow-principal", "User:a", "--operation", "Read", "--topic", "t", "--force")
    assert len(list_acls(headrace, "--topic", "t")) == 1
    headrace("acls", "remove", "--topic", "t", "--force")
    headrace("acls", "remove", "--cluster", "--force")
    headrace("acls", "remove", "--topic", "pre-", "--group", "g", "--resource-pattern-type", "any", "--force")
    assert list_acls(headrace) == set()


def test_commands_authenticate_over_tls_with_a_command_config(
    secured: tuple[EmbeddedNode, Authority, CommandLine], tmp_path: Path
) -> None:
    node, authority, headrace = secured
    headrace("users", "add", "zoe", "--password", "geheim")
    headrace(
        "acls", "add", "--allow-principal", "User:zoe", "--operation", "All", "--topic", "zoe-",
        "--resource-pattern-type", "prefixed",
    )  # fmt: skip
    config = tmp_path / "client.properties"

    def configure(password: str, **more: Any) -> None:
        lines = {
            "bootstrap.servers": f"localhost:{node.node.ports['SASL_SSL']}",
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": "SCRAM-SHA-512",
            "sasl.jaas.config": f'{SCRAM} required username="zoe" password="{password}";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(authority.certificate),
            **more,
        }
        config.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))

    zoe = CommandLine()
    configure("geheim")
    zoe("topics", "create", "zoe-1", "--command-config", config)
    zoe("produce", "zoe-1", "--command-config", config, stdin="hello\n")
    assert zoe("consume", "zoe-1", "-e", "--command-config", config) == "hello\n"
    assert "TOPIC_AUTHORIZATION_FAILED" in zoe("topics", "create", "other", "--command-config", config, fails=True)
    assert "CLUSTER_AUTHORIZATION_FAILED" in zoe("acls", "list", "--command-config", config, fails=True)
    configure("falsch")
    message = zoe("topics", "list", "--command-config", config, fails=True)
    assert "SASL_AUTHENTICATION_FAILED" in message and "falsch" not in message
    configure("geheim", **{"ssl.truststore.type": "JKS"})
    assert "it must be one of PEM" in zoe("topics", "list", "--command-config", config, fails=True)
    configure("geheim", **{"ssl.truststore.password": "geheim"})
    message = zoe("topics", "list", "--command-config", config, fails=True)
    assert "openssl" in message and "geheim" not in message
    plain = tmp_path / "plain.properties"
    known = "".join(f"{name}={value}\n" for name, value in login_options("admin").items())
    plain.write_text(f"{known}securty.protocol=SSL\nretries=3\n")
    warned = CommandLine(node.bootstrap)("topics", "list", "--command-config", plain)
    assert "zoe-1" in warned
    headrace("acls", "remove", "--topic", "zoe-", "--resource-pattern-type", "prefixed", "--force")

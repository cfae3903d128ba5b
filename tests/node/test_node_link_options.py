"""Options of links to other nodes: each security protocol, the choice of the listener, and errors that name the option."""

from __future__ import annotations

import asyncio
import random
import ssl
from pathlib import Path
from typing import Any

import pytest
from tests.security.pem_files import Authority, needs_openssl
from tests.security.plain_logins import PASSWORD, server_settings

from headrace.base.errors import ConfigError, ErrorCode, KafkaError
from headrace.client.wire.node_link import Address, LinkOptions, NodeLink
from headrace.node.configuration.settings import make_settings
from headrace.node.wiring.link_options import controller_link_options, inter_broker_link_options, inter_broker_listener
from headrace.protocol.messages.describe_cluster import DescribeClusterRequest
from headrace.security.jaas import PLAIN_MODULE, SCRAM_MODULE
from headrace.testing.cluster import LOOPBACK, EmbeddedNode

LISTENERS = {"listeners": "INNER://:9092,CONTROL://:9093", "controller.listener.names": "CONTROL"}


def controller_links(protocol: str, **more: str) -> LinkOptions:
    given = {**LISTENERS, "listener.security.protocol.map": f"INNER:PLAINTEXT,CONTROL:{protocol}", **more}
    return controller_link_options(make_settings(given, single_node=True), random.Random(1))


def broker_links(protocol: str, **more: str) -> LinkOptions:
    given = {
        **LISTENERS,
        "listener.security.protocol.map": f"INNER:{protocol},CONTROL:PLAINTEXT",
        "inter.broker.listener.name": "INNER",
        **more,
    }
    return inter_broker_link_options(make_settings(given, single_node=True), random.Random(1))


def test_plaintext_links_have_no_security_and_use_the_nodes_timeouts() -> None:
    timeouts = {"request.timeout.ms": "7000", "socket.connection.setup.timeout.ms": "1500"}
    for options in (controller_links("PLAINTEXT", **timeouts), broker_links("PLAINTEXT", **timeouts)):
        assert options.security.tls is None and options.security.login is None
        assert (options.client_id, options.request_timeout_s, options.connect_timeout_s) == ("node-1", 7.0, 1.5)


@pytest.mark.parametrize(
    ("links", "listener", "mechanism_option"),
    [
        (controller_links, "control", "sasl.mechanism.controller.protocol"),
        (broker_links, "inner", "sasl.mechanism.inter.broker.protocol"),
    ],
    ids=["controller", "broker"],
)
def test_sasl_links_log_in_with_the_user_of_the_listeners_login_line(
    links: Any, listener: str, mechanism_option: str
) -> None:
    login = f'{SCRAM_MODULE} required username="node" password="{PASSWORD}";'
    given = {f"listener.name.{listener}.scram-sha-512.sasl.jaas.config": login, mechanism_option: "SCRAM-SHA-512"}
    security = links("SASL_PLAINTEXT", **given).security
    assert security.tls is None and security.login.mechanism == "SCRAM-SHA-512"
    assert b"n=node" in security.login.start().first()


@needs_openssl
def test_tls_links_present_the_listeners_certificate_and_check_names_unless_disabled(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    _, _, store = authority.issue("node", "/CN=node")
    given = {
        "listener.name.control.ssl.keystore.type": "PEM",
        "listener.name.control.ssl.keystore.location": str(store),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.certificate),
    }
    tls = controller_links("SSL", **given).security.tls
    assert tls is not None and tls.check_hostname and tls.verify_mode is ssl.CERT_REQUIRED
    assert tls.get_ca_certs()[0]["subject"] == ((("commonName", "authority"),),)
    tls = controller_links("SSL", **given, **{"ssl.endpoint.identification.algorithm": ""}).security.tls
    assert tls is not None and not tls.check_hostname
    login = f'{PLAIN_MODULE} required username="node" password="{PASSWORD}";'
    both = controller_links(
        "SASL_SSL",
        **given,
        **{"sasl.mechanism.controller.protocol": "PLAIN", "listener.name.control.plain.sasl.jaas.config": login},
    ).security
    assert both.tls is not None and both.login is not None and both.login.mechanism == "PLAIN"


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, r"sasl\.mechanism\.controller\.protocol=GSSAPI is not supported"),
        ({"sasl.mechanism.controller.protocol": "PLAIN"}, r"listener\.name\.control\.plain\.sasl\.jaas\.config"),
        (
            {
                "sasl.mechanism.controller.protocol": "PLAIN",
                "listener.name.control.plain.sasl.jaas.config": f'{PLAIN_MODULE} required user_a="{PASSWORD}";',
            },
            "CONTROL of other nodes: .*username and password",
        ),
    ],
)
def test_a_login_that_is_not_configured_is_refused_with_the_name_of_its_option(
    given: dict[str, str], named: str
) -> None:
    with pytest.raises(ConfigError, match=named) as error:
        controller_links("SASL_PLAINTEXT", **given)
    assert PASSWORD not in str(error.value)


def test_a_store_that_is_not_pem_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"ssl\.truststore\.type=JKS"):
        controller_links("SSL", **{"ssl.truststore.location": "x.jks"})


@pytest.mark.parametrize(
    ("given", "listener"),
    [
        ({"inter.broker.listener.name": "b"}, "B"),
        ({"security.inter.broker.protocol": "SSL"}, "SSL"),
        ({"security.inter.broker.protocol": "SASL_SSL"}, "B"),
        ({}, "A"),
    ],
)
def test_the_inter_broker_listener_is_found_by_name_or_by_protocol(given: dict[str, str], listener: str) -> None:
    protocols = {"listener.security.protocol.map": "A:PLAINTEXT,B:SASL_SSL,SSL:SSL"}
    listeners = {"listeners": "A://:1,B://:2,SSL://:3"}
    assert inter_broker_listener(make_settings({**listeners, **protocols, **given}, single_node=True)) == listener


def test_a_missing_inter_broker_listener_is_refused() -> None:
    settings = make_settings(
        {"listeners": "A://:1", "listener.security.protocol.map": "A:SSL,CONTROLLER:SSL"}, single_node=True
    )
    with pytest.raises(ConfigError, match=r"inter\.broker\.listener\.name"):
        inter_broker_listener(settings)


def test_a_link_logs_in_to_the_controller_of_another_node_with_its_own_user() -> None:
    given = server_settings()

    async def describe(port: int, password: str) -> ErrorCode:
        login = f'{PLAIN_MODULE} required username="admin" password="{password}";'
        settings = make_settings(
            {
                **given,
                "sasl.mechanism.controller.protocol": "PLAIN",
                "listener.name.controller.plain.sasl.jaas.config": login,
            },
            single_node=True,
        )
        link = NodeLink(Address(LOOPBACK, port), controller_link_options(settings, random.Random(1)), random.Random(1))
        try:
            return ErrorCode((await link.request(DescribeClusterRequest(endpoint_type=2))).error_code)
        finally:
            await link.close()

    with EmbeddedNode(given) as node:
        port = node.node.ports["CONTROLLER"]
        assert asyncio.run(describe(port, PASSWORD)) is ErrorCode.NONE
        with pytest.raises(KafkaError) as caught:
            asyncio.run(describe(port, "wrong"))
        assert caught.value.code is ErrorCode.SASL_AUTHENTICATION_FAILED

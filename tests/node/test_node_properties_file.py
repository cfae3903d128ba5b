"""The properties file of issue 4: every name is honoured or reported; a real node starts with it, also on IPv6."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.security.pem_files import Authority, needs_openssl

from headrace.base.errors import ConfigError
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.connection import Connection
from headrace.client.wire.security import ClientSecurity
from headrace.node.configuration.settings import Settings, read_settings
from headrace.node.node import Node, Ports
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.protocol.messages.describe_configs import DescribeConfigsRequest
from headrace.storage.disk import DiskFiles
from headrace.testing.processes import free_port

FILE = """
broker.id=1
listeners=PLAINTEXT://:{plain},SSL://:{tls}
advertised.listeners=PLAINTEXT://127.0.0.1:{plain},SSL://localhost:{tls}
inter.broker.listener.name=PLAINTEXT
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@localhost:9093
controller.listener.names=CONTROLLER
log.dirs={one},{two}
num.partitions=12
default.replication.factor=1
min.insync.replicas=1
unclean.leader.election.enable=true
log.retention.hours=48
log.retention.bytes=1000000000
log.segment.bytes=16777216
log.retention.check.interval.ms=60000
num.network.threads=8
num.io.threads=16
socket.send.buffer.bytes=51200
socket.receive.buffer.bytes=65536
socket.request.max.bytes=5000000
num.replica.fetchers=4
replica.fetch.max.bytes=2097152
replica.socket.timeout.ms=20000
replica.lag.time.max.ms=20000
quota.producer.default=10485760
quota.consumer.default=10485760
queued.max.requests=1000
request.timeout.ms=20000
compression.type=lz4
headrace.http.listener=
"""
TLS = """
ssl.keystore.type=PEM
ssl.keystore.location={store}
"""
REPORTED = {
    "controller.listener.names", "num.network.threads", "num.io.threads", "replica.socket.timeout.ms",
    "quota.producer.default", "quota.consumer.default", "queued.max.requests",
}  # fmt: skip
HONOURED = {
    "log.retention.bytes": "1000000000", "log.segment.bytes": "16777216", "num.partitions": "12",
    "unclean.leader.election.enable": "true", "compression.type": "lz4", "log.retention.hours": "48",
    "socket.request.max.bytes": "5000000",
}  # fmt: skip


def ports(loop: asyncio.AbstractEventLoop) -> Ports:
    import random

    from headrace.base.clock import SystemClock

    return Ports(DiskFiles(), SystemClock(), random.Random(1), loop)


async def with_node(settings: Settings, work: Callable[..., Any] | None) -> list[Any]:
    node = await Node.start(settings, ports(asyncio.get_running_loop()))
    try:
        return await work(node)
    finally:
        await node.stop()


@pytest.fixture
def directories(tmp_path: Path) -> dict[str, Path]:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    return {"one": tmp_path / "one", "two": tmp_path / "two"}


@needs_openssl
def test_a_kafka_properties_file_starts_a_node_and_reports_unused_options(
    tmp_path: Path, directories: dict[str, Path], caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    store = authority.issue("server", "/CN=localhost")[2]
    plain, tls = free_port(), free_port()
    file = tmp_path / "server.properties"
    file.write_text((FILE + TLS).format(plain=plain, tls=tls, store=store, **directories))
    with caplog.at_level(logging.WARNING, logger="headrace.node"):
        settings = read_settings(file, [])
    assert {line.split(" ")[0].rstrip(":") for line in caplog.messages} == REPORTED
    assert len(caplog.messages) == len(REPORTED)

    async def work(node: Node) -> list[int]:
        async with Cluster([("127.0.0.1", plain)]) as cluster:
            await cluster.request(
                CreateTopicsRequest(
                    topics=[CreateTopicsRequest.CreatableTopic(name="t", num_partitions=-1, replication_factor=-1)]
                )
            )
            assert len(await cluster.partitions("t")) == 12
            resources = [
                DescribeConfigsRequest.DescribeConfigsResource(
                    resource_type=kind, resource_name=name, configuration_keys=None
                )
                for kind, name in ((4, "1"), (2, "t"))
            ]
            broker, topic = (await cluster.request(DescribeConfigsRequest(resources=resources))).results
            shown = {one.name: one.value for one in broker.configs}
            assert {name: shown[name] for name in HONOURED} == HONOURED
            assert {one.name: one.value for one in topic.configs}["retention.ms"] == str(48 * 3_600_000)
        context = ssl.create_default_context(cafile=str(authority.certificate))
        connection = await Connection.connect("localhost", tls, security=ClientSecurity(context))
        await connection.close()
        return [len(list(path.glob("t-*"))) for path in directories.values()]

    assert asyncio.run(with_node(settings, work)) == [6, 6]


def test_a_tls_listener_without_a_certificate_names_the_options_to_set(
    tmp_path: Path, directories: dict[str, Path]
) -> None:
    file = tmp_path / "server.properties"
    file.write_text(FILE.format(plain=free_port(), tls=free_port(), **directories))
    with pytest.raises(ConfigError, match=r"ssl\.keystore\.type=PEM"):
        asyncio.run(with_node(read_settings(file, []), None))


def sizes_of(send: int, receive: int, tmp_path: Path) -> list[int]:
    settings = read_settings(
        None,
        [
            "listeners=PLAINTEXT://127.0.0.1:0",
            f"log.dirs={tmp_path}",
            "headrace.http.listener=",
            f"socket.send.buffer.bytes={send}",
            f"socket.receive.buffer.bytes={receive}",
        ],
    )

    async def work(node: Node) -> list[int]:
        connection = await Connection.connect("127.0.0.1", node.ports["PLAINTEXT"])
        served = next(iter(node.broker._listeners[0]._pool.connections))
        accepted = served._transport.get_extra_info("socket")
        found = [accepted.getsockopt(socket.SOL_SOCKET, one) for one in (socket.SO_SNDBUF, socket.SO_RCVBUF)]
        await connection.close()
        return found

    return asyncio.run(with_node(settings, work))


def test_socket_buffer_sizes_are_set_on_client_connections(tmp_path: Path) -> None:
    assert sizes_of(51_200, 65_536, tmp_path / "set") == [2 * 51_200, 2 * 65_536]  # Linux doubles them
    with socket.socket() as one:
        system = one.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    assert sizes_of(-1, -1, tmp_path / "left")[1] >= system


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as one:
            one.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.clients
@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
def test_each_listener_advertises_its_own_address_to_clients(tmp_path: Path) -> None:
    from confluent_kafka.admin import AdminClient

    six, four = free_port(), free_port()
    settings = read_settings(
        None,
        [
            f"listeners=SIX://[::1]:{six},FOUR://127.0.0.1:{four}",
            "listener.security.protocol.map=SIX:PLAINTEXT,FOUR:PLAINTEXT",
            f"advertised.listeners=SIX://[::1]:{six},FOUR://localhost:{four}",
            "inter.broker.listener.name=FOUR",
            f"log.dirs={tmp_path}",
            "headrace.http.listener=",
        ],
    )

    def advertised_address(bootstrap: str) -> tuple[str, int]:
        (broker,) = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=10).brokers.values()
        return broker.host, broker.port

    async def work(node: Node) -> list[tuple[str, int]]:
        return [await asyncio.to_thread(advertised_address, text) for text in (f"[::1]:{six}", f"127.0.0.1:{four}")]

    assert asyncio.run(with_node(settings, work)) == [("::1", six), ("localhost", four)]

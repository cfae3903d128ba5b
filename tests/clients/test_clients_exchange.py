"""Real clients on a node: each reads what each other wrote, byte for byte. `make prove` runs the whole matrix."""

from __future__ import annotations

import itertools
import os

import pytest
from testkit.kafka_peer import require_kafka
from tools.prove.clients import CLIENTS, CODECS, Client, WriteOptions
from tools.prove.clients.matrix import Exchange, able
from tools.prove.clients.samples import FIRST_MS, STEP_MS, Sample

from headrace.testing.cluster import EmbeddedNode

pytestmark = [
    pytest.mark.clients,
    # kafka-python loads its schemas with an API that Python 3.11 deprecates.
    pytest.mark.filterwarnings(r"ignore:\w+ is deprecated. Use files\(\) instead:DeprecationWarning"),
]
PYTHON_CLIENTS = [client for client in CLIENTS if client.name != "java"]
JAVA = next(client for client in CLIENTS if client.name == "java")
_topics = (f"exchange-{number}" for number in itertools.count())


def client_name(client: Client) -> str:
    return client.name


def require(client: Client, codec: str = "none") -> None:
    reason = client.missing(codec)
    if reason is not None:
        if client.name == "kcat" and os.environ.get("CI") == "true":
            pytest.fail(f"CI must have kcat: {reason}")
        pytest.skip(reason)


def new_exchange(node: EmbeddedNode) -> Exchange:
    """Return an exchange in a topic that does not exist yet; the first writer creates it."""
    return Exchange(node.bootstrap, next(_topics))


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("writer", PYTHON_CLIENTS, ids=client_name)
def test_every_client_reads_what_each_client_wrote(
    headrace_session_node: EmbeddedNode, writer: Client, codec: str
) -> None:
    require(writer, codec)
    exchange = new_exchange(headrace_session_node)
    exchange.write(writer, WriteOptions(codec))
    for reader in able(PYTHON_CLIENTS, codec):
        exchange.read(reader)
    exchange.check()


@pytest.mark.parametrize(("acks", "idempotent"), [("0", False), ("1", False), ("all", False), ("all", True)])
@pytest.mark.parametrize("writer", PYTHON_CLIENTS, ids=client_name)
def test_records_are_written_with_every_acks_setting(
    headrace_session_node: EmbeddedNode, writer: Client, acks: str, idempotent: bool
) -> None:
    require(writer)
    exchange = new_exchange(headrace_session_node)
    exchange.write(writer, WriteOptions("gzip", acks, idempotent))
    exchange.write(writer, WriteOptions("none", acks, idempotent))
    exchange.read(writer)
    exchange.check()


@pytest.mark.parametrize("reader", PYTHON_CLIENTS, ids=client_name)
def test_reading_can_start_in_the_middle_of_a_batch(headrace_session_node: EmbeddedNode, reader: Client) -> None:
    require(reader)
    exchange = new_exchange(headrace_session_node)
    writer = PYTHON_CLIENTS[0]
    require(writer)
    exchange.write(writer, WriteOptions("gzip"))
    exchange.write(writer, WriteOptions("none"))
    for start in (0, 3, len(exchange.written) - 2):
        exchange.read(reader, start)
    exchange.check()


@pytest.mark.parametrize("client", PYTHON_CLIENTS, ids=client_name)
def test_clients_look_up_offsets_by_timestamp(headrace_session_node: EmbeddedNode, client: Client) -> None:
    require(client)
    exchange = new_exchange(headrace_session_node)
    writer = PYTHON_CLIENTS[0]
    require(writer)
    samples = [Sample(b"key", b"value", (), FIRST_MS + STEP_MS * number) for number in range(10)]
    exchange.write(writer, WriteOptions("gzip"), samples)
    exchange.write(writer, WriteOptions("none"), [Sample(None, b"later", (), FIRST_MS + STEP_MS * 20)])

    def offset_at(timestamp: int) -> int:
        return client.offset_for_time(exchange.bootstrap, exchange.topic, timestamp)

    assert [offset_at(FIRST_MS - 1), offset_at(FIRST_MS + 3 * STEP_MS), offset_at(FIRST_MS + 3 * STEP_MS + 1)] == [
        0,
        3,
        4,
    ]
    assert [offset_at(FIRST_MS + 15 * STEP_MS), offset_at(FIRST_MS + 21 * STEP_MS)] == [10, -1]


@pytest.mark.java
@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_the_java_client_exchanges_records_with_every_client(headrace_session_node: EmbeddedNode, codec: str) -> None:
    require_kafka()
    exchange = new_exchange(headrace_session_node)
    for writer in able(CLIENTS, codec):
        exchange.write(writer, WriteOptions(codec))
    for reader in able(CLIENTS, codec):
        exchange.read(reader)
    exchange.check()


@pytest.mark.java
def test_the_java_client_looks_up_offsets_by_timestamp(headrace_session_node: EmbeddedNode) -> None:
    require_kafka()
    exchange = new_exchange(headrace_session_node)
    exchange.write(PYTHON_CLIENTS[0], WriteOptions("gzip"))
    assert JAVA.offset_for_time(exchange.bootstrap, exchange.topic, FIRST_MS + 2 * STEP_MS) == 2

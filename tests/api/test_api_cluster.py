"""DescribeCluster on broker and controller listeners: each lists nodes of its own type and refuses the other type."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import pytest

from headrace.base.errors import ErrorCode
from headrace.client.wire.connection import Connection
from headrace.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from headrace.testing.cluster import LOOPBACK, EmbeddedNode

BROKERS, CONTROLLERS = 1, 2
MISMATCHED, UNSUPPORTED = ErrorCode.MISMATCHED_ENDPOINT_TYPE, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE


@pytest.fixture(scope="module")
def node() -> Iterator[EmbeddedNode]:
    listeners = f"PLAINTEXT://{LOOPBACK}:0,CONTROLLER://{LOOPBACK}:0"
    with EmbeddedNode({"listeners": listeners, "controller.listener.names": "CONTROLLER"}) as made:
        yield made


def describe(node: EmbeddedNode, listener: str, version: int, endpoint_type: int) -> DescribeClusterResponse:
    async def run() -> DescribeClusterResponse:
        connection = await Connection.connect(LOOPBACK, node.node.ports[listener])
        answer = await connection.request(DescribeClusterRequest(endpoint_type=endpoint_type), version=version)
        await connection.close()
        return answer

    return asyncio.run(run())


@pytest.mark.parametrize(("listener", "own"), [("PLAINTEXT", BROKERS), ("CONTROLLER", CONTROLLERS)])
@pytest.mark.parametrize("version", [1, 2])
def test_describe_cluster_lists_the_nodes_of_the_listeners_own_type(
    node: EmbeddedNode, listener: str, own: int, version: int
) -> None:
    answer = describe(node, listener, version, own)
    assert (answer.error_code, answer.endpoint_type) == (ErrorCode.NONE, own)
    assert [(one.broker_id, one.port) for one in answer.brokers] == [(1, node.node.ports[listener])]


@pytest.mark.parametrize(
    ("listener", "version", "requested_type", "code", "message_pattern"),
    [
        ("PLAINTEXT", 1, CONTROLLERS, MISMATCHED, "PLAINTEXT is a listener of type BROKER.*type CONTROLLER"),
        ("PLAINTEXT", 1, 3, UNSUPPORTED, "type 3 is unknown"),
        ("PLAINTEXT", 2, 0, UNSUPPORTED, "type 0 is unknown"),
        ("CONTROLLER", 0, BROKERS, ErrorCode.INVALID_REQUEST, "CONTROLLER is a listener of type CONTROLLER"),
        ("CONTROLLER", 1, BROKERS, MISMATCHED, "type CONTROLLER.*type BROKER.*bootstrap.servers"),
        ("CONTROLLER", 1, 3, UNSUPPORTED, "type 3 is unknown"),
    ],
)
def test_describe_cluster_refuses_another_endpoint_type_with_a_reason(
    node: EmbeddedNode, listener: str, version: int, requested_type: int, code: ErrorCode, message_pattern: str
) -> None:
    """Check the error codes, which are Kafka's."""
    answer = describe(node, listener, version, requested_type)
    assert (answer.error_code, answer.brokers, answer.cluster_id) == (code, [], "")
    assert answer.error_message is not None
    assert re.search(message_pattern, answer.error_message), answer.error_message

"""Only the node itself may act as its broker: other peers on the controller listener cannot register, fence or allocate."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from headrace.base.errors import ErrorCode
from headrace.base.ids import Uuid
from headrace.client.wire.connection import Connection
from headrace.protocol.declare import Struct
from headrace.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from headrace.protocol.messages.assign_replicas_to_dirs import AssignReplicasToDirsRequest
from headrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from headrace.protocol.messages.broker_registration import BrokerRegistrationRequest
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.testing.cluster import LOOPBACK, EmbeddedNode

OWN, FOREIGN = 1, 7
SETTINGS = {
    "listeners": f"PLAINTEXT://{LOOPBACK}:0,CONTROLLER://{LOOPBACK}:0",
    "controller.listener.names": "CONTROLLER",
}


@pytest.fixture
def node() -> Iterator[EmbeddedNode]:
    """Start a node without an authorizer: everyone who can reach the controller has all rights of an administrator."""
    with EmbeddedNode(SETTINGS) as made:
        yield made


def send_requests(node: EmbeddedNode, *requests: Struct, listener: str = "CONTROLLER") -> list[Any]:
    async def run() -> list[Any]:
        connection = await Connection.connect(LOOPBACK, node.node.ports[listener])
        answers = [await connection.request(request) for request in requests]
        await connection.close()
        return answers

    return asyncio.run(run())


def registration(node: EmbeddedNode, broker_id: int, incarnation_id: Uuid | None = None) -> BrokerRegistrationRequest:
    return BrokerRegistrationRequest(
        broker_id=broker_id,
        cluster_id=node.node.cluster_id,
        incarnation_id=incarnation_id or Uuid(b"i" * 16),
        listeners=[BrokerRegistrationRequest.Listener(name="PLAINTEXT", host="10.6.6.6", port=9092)],
        features=[
            BrokerRegistrationRequest.Feature(name=name, min_supported_version=0, max_supported_version=level)
            for name, level in node.node.broker.image.features.items()
        ],
        log_dirs=[Uuid(b"d" * 16)],
    )


def brokers(node: EmbeddedNode) -> dict[int, tuple[int, bool, bytes]]:
    return {one.id: (one.epoch, one.fenced, one.incarnation_id) for one in node.node.broker.image.brokers.values()}


def log_lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name.startswith("headrace.api")]


def test_a_foreign_broker_cannot_register_or_receive_replicas(
    node: EmbeddedNode, caplog: pytest.LogCaptureFixture
) -> None:
    before = brokers(node)
    with caplog.at_level(logging.INFO):
        answers = send_requests(node, *[registration(node, FOREIGN)] * 3)
    assert {answer.error_code for answer in answers} == {ErrorCode.INVALID_REGISTRATION}
    assert brokers(node) == before and set(before) == {OWN}
    (line,) = log_lines(caplog)
    assert "127.0.0.1" in line and f"broker {FOREIGN}" in line and "one node" in line
    topic = CreateTopicsRequest.CreatableTopic(name="two", num_partitions=1, replication_factor=2)
    (answer,) = send_requests(node, CreateTopicsRequest(topics=[topic]), listener="PLAINTEXT")
    assert answer.topics[0].error_code == ErrorCode.INVALID_REPLICATION_FACTOR


def test_a_peer_cannot_register_with_the_nodes_own_broker_id(
    node: EmbeddedNode, caplog: pytest.LogCaptureFixture
) -> None:
    before = brokers(node)
    _, _, incarnation_id = before[OWN]
    with caplog.at_level(logging.INFO):
        answers = send_requests(node, registration(node, OWN), registration(node, OWN, Uuid(incarnation_id)))
    assert {answer.error_code for answer in answers} == {ErrorCode.DUPLICATE_BROKER_REGISTRATION}
    assert brokers(node) == before and len(log_lines(caplog)) == 1


@pytest.mark.parametrize(
    "heartbeat_fields",
    [
        {"want_fence": True},
        {"want_shut_down": True},
        {"offline_log_dirs": True},
        {"cordoned_log_dirs": True},
        {},
    ],
    ids=lambda heartbeat_fields: next(iter(heartbeat_fields), "alive"),
)
def test_heartbeats_from_a_peer_are_refused_even_with_the_current_broker_epoch(
    node: EmbeddedNode, heartbeat_fields: dict[str, Any]
) -> None:
    before = brokers(node)
    epoch = before[OWN][0]
    dirs = list(node.node.broker.image.brokers[OWN].log_dirs)
    heartbeat_fields = {name: dirs if name.endswith("dirs") else value for name, value in heartbeat_fields.items()}
    own, foreign = send_requests(
        node,
        BrokerHeartbeatRequest(broker_id=OWN, broker_epoch=epoch, current_metadata_offset=1 << 40, **heartbeat_fields),
        BrokerHeartbeatRequest(broker_id=FOREIGN, broker_epoch=epoch, **heartbeat_fields),
    )
    assert own.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert foreign.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
    assert not own.should_shut_down and brokers(node) == before
    assert tuple(node.node.broker.image.brokers[OWN].log_dirs) == tuple(dirs)


def test_a_peer_cannot_allocate_producer_ids_or_assign_replica_directories(node: EmbeddedNode) -> None:
    epoch = brokers(node)[OWN][0]
    answers = send_requests(
        node,
        AllocateProducerIdsRequest(broker_id=OWN, broker_epoch=epoch),
        AssignReplicasToDirsRequest(broker_id=OWN, broker_epoch=epoch),
        AllocateProducerIdsRequest(broker_id=FOREIGN, broker_epoch=epoch),
        AssignReplicasToDirsRequest(broker_id=FOREIGN, broker_epoch=epoch),
    )
    assert [answer.error_code for answer in answers] == [
        *[ErrorCode.CLUSTER_AUTHORIZATION_FAILED] * 2,
        *[ErrorCode.BROKER_ID_NOT_REGISTERED] * 2,
    ]

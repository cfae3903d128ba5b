"""A second broker at a real controller, over the network: its life from the registration to a lost connection."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.security.plain_logins import CONTROLLER, login, server_settings

from headrace.api.controller import broker_connections
from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import NodeId, Uuid
from headrace.broker.channels.controller_channel import QuorumChannel
from headrace.broker.channels.controller_discovery import ControllerDiscovery
from headrace.broker.membership.observer import MetadataObserver
from headrace.broker.membership.registration import BrokerIdentity, HeartbeatTimes, Registration
from headrace.client.wire.connection import Connection
from headrace.client.wire.node_link import Address, LinkOptions, NodeLink
from headrace.metadata.image import Endpoint
from headrace.metadata.loader import MetadataLoader
from headrace.node.new_cluster.feature_levels import SUPPORTED_FEATURES
from headrace.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from headrace.protocol.messages.alter_partition import AlterPartitionRequest
from headrace.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest
from headrace.protocol.messages.broker_registration import BrokerRegistrationRequest
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.testing.cluster import LOOPBACK, EmbeddedNode

FIRST, SECOND = 1, NodeId(2)
SETTINGS = {
    "listeners": f"PLAINTEXT://{LOOPBACK}:0,CONTROLLER://{LOOPBACK}:0",
    "controller.listener.names": "CONTROLLER",
}


@pytest.fixture
def node() -> Iterator[EmbeddedNode]:
    with EmbeddedNode(SETTINGS) as made:
        yield made


class SecondBroker:
    """The part of a broker that talks to controllers; its listener accepts connections, but does not answer."""

    def __init__(self, node: EmbeddedNode) -> None:
        assert node.node is not None
        discovery = ControllerDiscovery({}, [Address(LOOPBACK, node.node.ports["CONTROLLER"])])
        options = LinkOptions(client_id="node-2")
        self.channel = QuorumChannel(
            SECOND,
            None,
            discovery,
            lambda address: NodeLink(address, options, random.Random(1)),
            random.Random(1),
            timeout_s=5.0,
        )
        self.loader = MetadataLoader([])
        self._observer = MetadataObserver(self.channel, self.loader, SECOND, node.node.cluster_id)
        directories: Any = SimpleNamespace(offline_ids=list, online_ids=lambda: [Uuid(b"d" * 16)], cordoned_ids=list)
        self.registration = Registration(
            self.channel,
            BrokerIdentity(SECOND, node.node.cluster_id, Uuid(b"i" * 16), rack=None, features=SUPPORTED_FEATURES),
            HeartbeatTimes(0.2, 30.0, 5.0),
            lambda: [Endpoint("PLAINTEXT", LOOPBACK, self.port, 0)],
            directories,
            lambda: self.loader.image.offset,
            lambda failure: None,
        )
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> SecondBroker:
        self._server = await asyncio.start_server(lambda reader, writer: writer.close(), LOOPBACK, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        await self.registration.register_at_start(-1)
        self._tasks.append(asyncio.create_task(self._observer.run()))
        await self.registration.become_active()
        self._tasks.append(asyncio.create_task(self.registration.run()))
        return self

    async def __aexit__(self, *_: object) -> None:
        """Disappear as a process that was killed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._server.close()
        await self._server.wait_closed()
        await self.channel.close()

    async def until(self, condition: Any) -> None:
        while not condition(self.loader.image):
            await asyncio.sleep(0.01)


async def create_replicated(node: EmbeddedNode) -> None:
    assert node.node is not None
    connection = await Connection.connect(LOOPBACK, node.node.ports["PLAINTEXT"])
    assignment = CreateTopicsRequest.CreatableReplicaAssignment(partition_index=0, broker_ids=[SECOND, FIRST])
    topic = CreateTopicsRequest.CreatableTopic(
        name="t", num_partitions=-1, replication_factor=-1, assignments=[assignment]
    )
    response = await connection.request(CreateTopicsRequest(topics=[topic]))
    assert response.topics[0].error_code == ErrorCode.NONE, response.topics[0].error_message
    await connection.close()


def test_a_second_broker_registers_leads_changes_the_isr_and_shuts_down(node: EmbeddedNode) -> None:
    async def work() -> None:
        async with SecondBroker(node) as second:
            await second.until(lambda image: SECOND in image.brokers and not image.brokers[SECOND].fenced)
            await create_replicated(node)
            await second.until(lambda image: "t" in image.topics)
            topic = second.loader.image.topics["t"]
            assert (topic.partitions[0].leader, topic.partitions[0].isr) == (SECOND, (SECOND, FIRST))
            epoch = second.registration.broker_epoch
            proposal = AlterPartitionRequest.PartitionData(
                leader_epoch=topic.partitions[0].leader_epoch,
                partition_epoch=topic.partitions[0].partition_epoch,
                new_isr_with_epochs=[AlterPartitionRequest.BrokerState(broker_id=SECOND, broker_epoch=epoch)],
            )
            response = await second.channel.request(
                AlterPartitionRequest(
                    broker_id=SECOND,
                    broker_epoch=epoch,
                    topics=[AlterPartitionRequest.TopicData(topic_id=topic.id, partitions=[proposal])],
                )
            )
            assert response.topics[0].partitions[0].isr == [SECOND]
            await second.until(lambda image: image.topics["t"].partitions[0].isr == (SECOND,))
            request = AllocateProducerIdsRequest(broker_id=SECOND, broker_epoch=epoch)
            assert (await second.channel.request(request)).producer_id_len == 1000
            await second.registration.leave()
            await second.until(lambda image: image.brokers[SECOND].fenced)

    asyncio.run(asyncio.wait_for(work(), 30))


def test_a_broker_whose_process_is_gone_is_fenced_long_before_its_session_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        broker_connections, "PROBE_S_MAX", 20.0
    )  # on a busy machine, a probe may take longer than usual

    async def work(node: EmbeddedNode) -> None:
        async with SecondBroker(node):
            await create_replicated(node)
        assert node.node is not None
        while not node.node.broker.image.brokers[SECOND].fenced:
            await asyncio.sleep(0.01)
        assert node.node.broker.image.topics["t"].partitions[0].leader == FIRST

    with EmbeddedNode({**SETTINGS, "broker.session.timeout.ms": "600000"}) as node:
        asyncio.run(asyncio.wait_for(work(node), 60))


def test_a_broker_of_another_cluster_is_refused_with_the_reason(node: EmbeddedNode) -> None:
    async def work() -> None:
        second = SecondBroker(node)
        second.port = 1
        second.registration._identity = BrokerIdentity(SECOND, "other", Uuid(b"i" * 16), None, SUPPORTED_FEATURES)
        with pytest.raises(KafkaError, match="another cluster"):
            await second.registration.register_at_start(-1)
        await second.channel.close()

    asyncio.run(asyncio.wait_for(work(), 30))


def test_a_user_without_cluster_action_may_not_act_as_a_broker() -> None:
    async def send(port: int) -> list[int]:
        connection = await Connection.connect(LOOPBACK, port, security=login("alice"))
        requests = (
            BrokerRegistrationRequest(broker_id=SECOND),
            BrokerHeartbeatRequest(broker_id=FIRST, want_fence=True),
            AlterPartitionRequest(broker_id=FIRST),
            AllocateProducerIdsRequest(broker_id=FIRST),
        )
        codes = [(await connection.request(request)).error_code for request in requests]
        await connection.close()
        return codes

    with EmbeddedNode(server_settings("alice")) as node:
        assert node.node is not None
        assert asyncio.run(send(node.node.ports[CONTROLLER])) == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED] * 4
        assert not node.node.broker.image.brokers[FIRST].fenced

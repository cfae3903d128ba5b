"""Three combined nodes over loopback: a topic with three replicas survives the loss of its leader, which returns to the ISR."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.node.controllers import LOOPBACK, Controllers

from headrace.base.errors import ErrorCode
from headrace.client.retry import UNREACHABLE
from headrace.client.wire.connection import Connection
from headrace.metadata.image import BROKER_CONFIG
from headrace.metadata.image import Partition as PartitionState
from headrace.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from headrace.protocol.messages.produce import ProduceRequest, ProduceResponse
from headrace.records.builder import build_batch
from headrace.records.record import Record
from headrace.testing.cluster import EmbeddedNode

NOW_MS = 1_700_000_000_000


class ReplicatedTopic:
    """A topic `t` with one partition on all nodes."""

    def __init__(self, cluster: Controllers) -> None:
        self.cluster = cluster

    @property
    def state(self) -> PartitionState | None:
        node = next(iter(self.cluster.nodes.values()))
        return node.broker.image.partition("t", 0)

    async def create(self, *replicas: int) -> None:
        """Create the topic, with `replicas` in this order if they are given; the first one leads."""
        assignment = CreateTopicsRequest.CreatableReplicaAssignment(partition_index=0, broker_ids=list(replicas))
        connection = await Connection.connect(LOOPBACK, self.cluster.broker_ports[1])
        config = CreateTopicsRequest.CreatableTopicConfig(name="min.insync.replicas", value="2")
        topic = CreateTopicsRequest.CreatableTopic(
            name="t",
            num_partitions=-1 if replicas else 1,
            replication_factor=-1 if replicas else 3,
            assignments=[assignment] if replicas else [],
            configs=[config],
        )
        response: CreateTopicsResponse = await connection.request(CreateTopicsRequest(topics=[topic], timeout_ms=5000))
        await connection.close()
        assert response.topics[0].error_code == ErrorCode.NONE
        await self.cluster.until(lambda: self.state is not None and self.is_in_sync())

    async def produce(self) -> int:
        """Produce one record with acks=all, to whichever broker leads, and return its offset."""
        while True:
            try:
                code, offset = await self._try_to_produce()
                if code is ErrorCode.NONE:
                    return offset
            except UNREACHABLE:
                pass
            await asyncio.sleep(0.02)

    async def _try_to_produce(self) -> tuple[ErrorCode, int]:
        if self.state.leader < 0:
            return ErrorCode.LEADER_NOT_AVAILABLE, -1
        connection = await Connection.connect(LOOPBACK, self.cluster.broker_ports[self.state.leader])
        try:
            batch = bytes(build_batch([Record(0, NOW_MS, None, b"value")]))
            data = ProduceRequest.PartitionProduceData(index=0, records=batch)
            topic_id = next(iter(self.cluster.nodes.values())).broker.image.topics["t"].id
            topic = ProduceRequest.TopicProduceData(topic_id=topic_id, partition_data=[data])
            request = ProduceRequest(acks=-1, timeout_ms=3000, topic_data=[topic])
            response: ProduceResponse = await connection.request(request)
        finally:
            await connection.close()
        result = response.responses[0].partition_responses[0]
        return ErrorCode(result.error_code), result.base_offset

    def is_in_sync(self) -> bool:
        """Return whether all running nodes have the same log, all of it committed, and all nodes are in the ISR."""
        if len(self.state.isr) < 3:
            return False
        replicas = [
            one for node in self.cluster.nodes.values() for one in node.broker.replicas.all() if one.name.topic == "t"
        ]
        return (
            len(replicas) == 3 and len({end for one in replicas for end in (one.log.log_end, one.high_watermark)}) == 1
        )


def test_a_topic_with_three_replicas_survives_the_loss_of_its_leader(tmp_path: Path) -> None:
    async def run() -> None:
        cluster = Controllers(tmp_path, are_brokers=True)
        await cluster.start()
        await cluster.until_registered()
        topic = ReplicatedTopic(cluster)
        try:
            await topic.create()
            assert [await topic.produce() for _ in range(20)] == list(range(20))
            leader = topic.state.leader
            await cluster.kill(leader)
            assert await topic.produce() == 20
            assert topic.state.leader != leader and leader not in topic.state.isr
            await cluster.start_one(leader)
            await cluster.until(topic.is_in_sync)
            assert await topic.produce() == 21
            await cluster.until(topic.is_in_sync)
        finally:
            await cluster.kill(*cluster.nodes)

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_broker_that_dies_as_the_active_controller_is_fenced_before_its_session_ends(tmp_path: Path) -> None:
    async def run() -> None:
        cluster = Controllers(tmp_path, are_brokers=True)
        # The test would not live to see the end of such a session.
        await cluster.start(**{"broker.session.timeout.ms": "600000"})
        await cluster.until_registered()
        topic = ReplicatedTopic(cluster)
        try:
            both = await cluster.until_leader()
            await topic.create(both, *(node_id for node_id in cluster.nodes if node_id != both))
            assert await topic.produce() == 0
            assert topic.state.leader == both == cluster.leader
            await cluster.kill(both)
            assert await topic.produce() == 1
            assert topic.state.leader != both and both not in topic.state.isr
        finally:
            await cluster.kill(*cluster.nodes)

    asyncio.run(asyncio.wait_for(run(), 60))


def test_min_insync_replicas_of_the_settings_applies_to_a_new_cluster() -> None:
    with EmbeddedNode({"min.insync.replicas": "2"}) as node:
        assert node.node is not None and node.node.broker is not None
        assert node.node.broker.image.config(BROKER_CONFIG, "")["min.insync.replicas"] == "2"

"""A whole node on simulated disks, in virtual time, with a client."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from random import Random

from testkit.history import History
from testkit.simulator.loop import SimulatedLoop
from testkit.simulator.machine import HOST, PORT, Machine
from testkit.simulator.network import Network

from headrace.base.errors import ErrorCode
from headrace.base.ids import TopicPartition
from headrace.client.consumer.list_offsets import list_offset
from headrace.client.consumer.range_reader import ReadOnce, read_once
from headrace.client.producer.producer import AsyncProducer
from headrace.client.wire.cluster import Cluster
from headrace.node.node import Node
from headrace.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from headrace.protocol.messages.metadata import MetadataRequest, MetadataResponse
from headrace.protocol.messages.produce import ProduceRequest
from headrace.records.builder import BatchBuilder

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
STEP_S = 0.05
PRODUCER: dict[str, object] = {
    "linger.ms": 0,  # each send becomes one batch
    "retries": 4,
    "retry.backoff.max.ms": 100,
    "request.timeout.ms": 500,
    "max.block.ms": 500,
}


class NodeHarness:
    def __init__(self, options: dict[str, str] | None = None, *, two_dirs: bool = False, seed: int = 1) -> None:
        self.loop = SimulatedLoop(Random(seed), steps_max=2_000_000)
        network = Network(self.loop, Random(seed + 1))
        self.machine = Machine(
            self.loop, network, Random(seed + 2), History(), options or {}, lambda text: None, two_dirs=two_dirs
        )
        self.files = self.machine.files
        self.cluster = Cluster([(HOST, PORT)], timeout_s=5.0)
        self.producer = AsyncProducer(PRODUCER, cluster=self.cluster, clock=self.files, random=Random(seed + 3))

    @property
    def node(self) -> Node:
        assert self.machine.node is not None
        return self.machine.node

    def run(self, main: Callable[[], Awaitable[None]]) -> None:
        async def whole() -> None:
            supervisor = self.loop.create_task(self.machine.supervise())
            await self.machine.until_up()
            await self.producer.start()
            await main()
            await self.producer.close(0)
            supervisor.cancel()

        self.loop.run_until_complete(whole())
        self.loop.close()
        assert self.machine.failures == []

    async def create(self, partitions: int, **options: str) -> None:
        configs = [
            CreateTopicsRequest.CreatableTopicConfig(name=name.replace("_", "."), value=value)
            for name, value in options.items()
        ]
        topic = CreateTopicsRequest.CreatableTopic(
            name="t", num_partitions=partitions, replication_factor=1, configs=configs
        )
        response: CreateTopicsResponse = await self.cluster.request(CreateTopicsRequest(topics=[topic]))
        assert response.topics[0].error_code == ErrorCode.NONE

    async def send(self, partition: TopicPartition = T0, count: int = 1, size: int = 100) -> int:
        return await self.send_records(partition, [(b"k", b"v" * size)] * count)

    async def send_records(self, partition: TopicPartition, records: list[tuple[bytes, bytes]]) -> int:
        """Send one batch and return the offset of its first record."""
        topic, index = partition
        await self.producer.partitions_for(topic)
        sent = [await self.producer.send(topic, value, key, partition=index) for key, value in records]
        offsets = [(await one).offset for one in sent]
        return offsets[0]

    async def refusal(self, partition: TopicPartition = T0) -> ErrorCode:
        """Send one batch without retries and return the error code."""
        connection = await self.cluster.leader(partition)
        return ErrorCode(
            (await connection.request(self.request(partition))).responses[0].partition_responses[0].error_code
        )

    def request(self, partition: TopicPartition = T0) -> ProduceRequest:
        builder = BatchBuilder()
        builder.append(self.files.now_ms(), None, b"v" * 500)
        data = ProduceRequest.PartitionProduceData(index=partition.partition, records=bytes(builder.build()))
        topic = ProduceRequest.TopicProduceData(topic_id=self.cluster.topic_id(partition.topic), partition_data=[data])
        return ProduceRequest(acks=-1, timeout_ms=1000, topic_data=[topic])

    async def read(self, partition: TopicPartition = T0, offset: int = 0) -> int:
        """Return the number of records from an offset on."""
        return len((await self.fetch(partition, offset)).records)

    async def fetch(self, partition: TopicPartition, offset: int) -> ReadOnce:
        return await read_once(self.cluster, partition, offset, wait_ms=0)

    async def offset(self, partition: TopicPartition, timestamp: int) -> int:
        return await list_offset(self.cluster, partition, timestamp)

    async def offline_replicas(self) -> dict[int, list[int]]:
        """Return the offline replicas by partition, as Metadata reports them."""
        topic = MetadataRequest.MetadataRequestTopic(name="t")
        response: MetadataResponse = await self.cluster.request(MetadataRequest(topics=[topic]))
        return {one.partition_index: one.offline_replicas for one in response.topics[0].partitions}

    async def until(self, wanted: Callable[[], bool], seconds: float = 120.0) -> None:
        deadline = self.loop.now + seconds
        while not wanted():
            assert self.loop.now < deadline, "it did not happen"
            await asyncio.sleep(STEP_S)

    def refuse(self, below: str, number: int, *operations: str) -> None:
        self.files.fault = lambda operation, path: (
            OSError(number, os.strerror(number), path) if operation in operations and path.startswith(below) else None
        )

    def log_dir(self, partition: TopicPartition) -> str:
        return self.node.broker.replicas.get(*partition).log.directory.rpartition("/")[0]

    def names(self, directory: str) -> list[str]:
        return list(self.files.list_dir(directory))

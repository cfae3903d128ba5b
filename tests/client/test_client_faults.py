"""A node that dies while it is read."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace.base.ids import TopicPartition
from headrace.client.consumer.consumer import AsyncConsumer
from headrace.client.consumer.range_reader import RangeOptions, read_range
from headrace.client.wire.cluster import Cluster
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.protocol.messages.produce import ProduceRequest
from headrace.records.builder import BatchBuilder
from headrace.testing.cluster import EmbeddedNode

HERE = TopicPartition("t", 0)
RECORDS = 5000


async def fill(cluster: Cluster) -> None:
    topic = CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    await cluster.request(CreateTopicsRequest(topics=[topic], timeout_ms=10_000))
    await cluster.partitions("t")
    connection = await cluster.leader(HERE)
    for first in range(0, RECORDS, 50):
        builder = BatchBuilder()
        for index in range(first, first + 50):
            builder.append(1, None, b"%d" % index)
        data = ProduceRequest.PartitionProduceData(index=0, records=bytes(builder.build()))
        topic_data = ProduceRequest.TopicProduceData(topic_id=cluster.topic_id("t"), partition_data=[data])
        response = await connection.request(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic_data]))
        assert response.responses[0].partition_responses[0].error_code == 0


async def start_later(node: EmbeddedNode) -> None:
    await asyncio.sleep(0.3)
    await asyncio.to_thread(node.start)


def test_a_range_reader_survives_kills_of_its_broker(headrace_node: EmbeddedNode) -> None:
    async def work() -> None:
        async with Cluster([("127.0.0.1", headrace_node.port)]) as cluster:
            await fill(cluster)
            found: list[bytes] = []
            starts: list[asyncio.Task[Any]] = []
            options = RangeOptions(columns=("offset", "value"), max_bytes=5000)
            async for rows in read_range(cluster, HERE, 0, RECORDS, options):
                found += rows["value"].to_pylist()
                if len(found) // 1500 > len(starts):
                    if starts:
                        await starts[-1]
                    await asyncio.to_thread(headrace_node.kill)
                    starts.append(asyncio.create_task(start_later(headrace_node)))
            assert found == [b"%d" % index for index in range(RECORDS)] and len(starts) == 3
            await starts[-1]

    asyncio.run(asyncio.wait_for(work(), 40))


def test_a_consumer_survives_kills_of_its_broker(headrace_node: EmbeddedNode) -> None:
    async def work() -> None:
        async with Cluster([("127.0.0.1", headrace_node.port)]) as cluster:
            await fill(cluster)
        options = {"bootstrap.servers": headrace_node.bootstrap, "auto.offset.reset": "earliest"}
        async with AsyncConsumer({**options, "max.partition.fetch.bytes": 5000}) as consumer:
            consumer.assign([HERE])
            found: list[int] = []
            starts: list[asyncio.Task[Any]] = []
            while len(found) < RECORDS:
                found += [record.offset for record in await consumer.poll(1.0, 100)]
                if len(found) // 1500 > len(starts):
                    if starts:
                        await starts[-1]
                    await asyncio.to_thread(headrace_node.kill)
                    starts.append(asyncio.create_task(start_later(headrace_node)))
            assert found == list(range(RECORDS)) and len(starts) == 3
            await starts[-1]

    asyncio.run(asyncio.wait_for(work(), 40))

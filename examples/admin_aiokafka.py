"""Create, inspect, widen, truncate and delete a topic with aiokafka's admin client."""

from __future__ import annotations

import asyncio
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.admin.records_to_delete import RecordsToDelete


async def main(bootstrap: str = "localhost:9092", topic: str = "administered-too") -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(topic, 2, 1, topic_configs={"retention.ms": "86400000"})])
    await admin.create_partitions({topic: NewPartitions(3)})
    (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    configs = {entry[0]: entry[1] for entry in answer.resources[0][4]}
    print(f"retention.ms={configs['retention.ms']}")

    partition = TopicPartition(topic, 0)
    async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
        for number in range(10):
            await producer.send_and_wait(topic, b"record %d" % number, partition=0)
    await admin.delete_records({partition: RecordsToDelete(before_offset=4)})
    async with AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
        first = (await consumer.beginning_offsets([partition]))[partition]
        last = (await consumer.end_offsets([partition]))[partition]
    (described,) = await admin.describe_topics([topic])
    print(f"{len(described['partitions'])} partitions, the first one holds offsets {first} to {last - 1}")
    await admin.delete_topics([topic])
    await admin.close()
    print(f"{topic} is gone")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))

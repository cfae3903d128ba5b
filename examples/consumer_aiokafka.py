"""Read all partitions of a topic from the beginning to the current end with aiokafka."""

from __future__ import annotations

import asyncio
import sys

from aiokafka import AIOKafkaConsumer, TopicPartition


async def main(bootstrap: str = "localhost:9092", topic: str = "greetings") -> None:
    read = 0
    # Without a group, partitions are assigned manually and nothing is committed.
    async with AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest", group_id=None
    ) as consumer:
        partitions = [
            TopicPartition(topic, partition) for partition in sorted(consumer.partitions_for_topic(topic) or ())
        ]
        ends = await consumer.end_offsets(partitions)
        await consumer.seek_to_beginning(*partitions)
        while any([await consumer.position(one) < ends[one] for one in partitions]):
            for messages in (await consumer.getmany(timeout_ms=1000)).values():
                for message in messages:
                    read += 1
                    print(f"{message.partition}@{message.offset} {message.key!r} {message.value!r}")
    print(f"{read} records")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))

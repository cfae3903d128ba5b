"""One record with aiokafka, there and back, on the event loop. Needs a node on localhost:9092 (`make run`)."""

from __future__ import annotations

import asyncio
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition


async def main(bootstrap: str = "localhost:9092") -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True) as producer:
        sent = await producer.send_and_wait("greetings", key=b"k", value=b"hello from aiokafka")
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap)
    async with consumer:
        partition = TopicPartition("greetings", sent.partition)
        consumer.assign([partition])
        consumer.seek(partition, sent.offset)
        message = await consumer.getone()
        print(message.offset, message.value)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

"""Copy a topic exactly once with asyncio, committing records and offsets in one transaction.

Usage: client_copy.py [HOST:PORT [FROM [TO]]]
"""

from __future__ import annotations

import asyncio
import sys

from headrace.client import AsyncAdmin, AsyncConsumer, AsyncProducer, KafkaError, NewTopic


async def main(bootstrap: str = "localhost:9092", source: str = "measurements", target: str = "copied") -> None:
    servers = {"bootstrap.servers": bootstrap}
    async with AsyncAdmin(servers) as admin:
        partitions = len((await admin.describe_topics([source]))[source].partitions)
        try:
            await admin.create_topics([NewTopic(target, partitions)])
        except KafkaError as error:
            if error.code.name != "TOPIC_ALREADY_EXISTS":
                raise
    reading = {"group.id": f"copies-{source}", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    async with (
        AsyncProducer({**servers, "transactional.id": f"copies-{source}"}) as producer,
        AsyncConsumer({**servers, **reading, "isolation.level": "read_committed"}) as consumer,
    ):
        transaction = producer.transaction
        await transaction.init()  # fences the previous copier and aborts its open transaction
        consumer.subscribe([source])
        copied, is_idle = 0, False
        while not is_idle:
            batches = await consumer.poll_batch(2.0, columns=("key", "value", "headers", "timestamp"))
            is_idle = bool(consumer.assignment()) and not batches
            if not batches:
                continue
            await transaction.begin()
            for partition, rows in batches:
                await producer.send_batch(target, rows, partition=partition.partition)
            await transaction.send_offsets(consumer.positions(), consumer.group_metadata())
            await transaction.commit()
            copied += sum(rows.num_rows for _, rows in batches)
    print(f"{copied} records copied")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:4]))

"""Choose partitions with your own function, which aiokafka calls for every record without an explicit partition."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Sequence
from zlib import crc32

from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient, NewTopic


def by_region(key: bytes | None, all_partitions: Sequence[int], available: Sequence[int]) -> int:
    """Return the partition for the part of the key before the dash, or a random one without a key.

    b"north-17" and b"north-4" go to the same partition.
    """
    if key is None:
        return random.choice(available or all_partitions)
    return all_partitions[crc32(key.partition(b"-")[0]) % len(all_partitions)]


async def main(bootstrap: str = "localhost:9092", topic: str = "by-region-too", *, partitions: int = 4) -> None:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
    await admin.start()
    await admin.create_topics([NewTopic(topic, partitions, 1)])
    await admin.close()
    placed: dict[str, set[int]] = {}
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, partitioner=by_region) as producer:
        for number in range(40):
            region = ("north", "south", "west")[number % 3]
            sent = await producer.send_and_wait(topic, key=f"{region}-{number}".encode(), value=b"measured")
            placed.setdefault(region, set()).add(sent.partition)
    for region, where in sorted(placed.items()):
        print(f"{region}: partition {', '.join(map(str, sorted(where)))}")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))

"""Choose partitions yourself: records of one region, named in the key, stay in one partition."""

from __future__ import annotations

import sys
from zlib import crc32

from confluent_kafka import KafkaError, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic


def partition_for(key: str, partitions: int) -> int:
    """Return the partition for the part of the key before the dash: "north-17" and "north-4" share one."""
    return crc32(key.partition("-")[0].encode()) % partitions


def main(bootstrap: str = "localhost:9092", topic: str = "by-region", *, partitions: int = 4) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        future.result(30)
    placed: dict[str, set[int]] = {}

    def delivered(error: KafkaError | None, message: Message) -> None:
        region = (message.key() or b"").decode().partition("-")[0]
        placed.setdefault(region, set()).add(message.partition() or 0)

    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(40):
        key = f"{('north', 'south', 'west')[number % 3]}-{number}"
        producer.produce(
            topic,
            key=key,
            value=b"measured",
            partition=partition_for(key, partitions),
            on_delivery=delivered,
        )
    producer.flush(30)
    for region, where in sorted(placed.items()):
        print(f"{region}: partition {', '.join(map(str, sorted(where)))}")


if __name__ == "__main__":
    main(*sys.argv[1:3])

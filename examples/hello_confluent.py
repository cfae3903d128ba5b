"""The README's example: write one record with librdkafka and read it back. Needs a node on localhost:9092 (`make run`)."""

from __future__ import annotations

import sys

from confluent_kafka import Consumer, Producer, TopicPartition


def main(bootstrap: str = "localhost:9092") -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": "lz4"})
    producer.produce("greetings", key=b"k", value=b"hello from librdkafka", headers={"trace": b"1"})
    producer.flush()
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([TopicPartition("greetings", 0, 0)])
    message = consumer.poll(10)
    print(message.offset(), message.value())
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])

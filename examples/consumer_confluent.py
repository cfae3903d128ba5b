"""Read all partitions of a topic from the beginning to the current end with librdkafka."""

from __future__ import annotations

import sys

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

WAIT_S = 10.0


def main(bootstrap: str = "localhost:9092", topic: str = "greetings") -> None:
    # Nothing is committed, but the client requires a group id.
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    partitions = consumer.list_topics(topic, timeout=WAIT_S).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions])
    open_partitions, read = set(partitions), 0
    while open_partitions:
        message = consumer.poll(WAIT_S)
        if message is None:
            sys.exit(f"nothing came for {WAIT_S:.0f} s")
        error = message.error()
        if error is None:
            read += 1
            print(f"{message.partition()}@{message.offset()} {message.key()!r} {message.value()!r}")
        elif error.code() == KafkaError._PARTITION_EOF:
            open_partitions.discard(message.partition())
        else:
            sys.exit(str(error))
    consumer.close()
    print(f"{read} records")


if __name__ == "__main__":
    main(*sys.argv[1:3])

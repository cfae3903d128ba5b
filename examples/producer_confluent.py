"""Write a hundred records with librdkafka and count the acknowledged ones."""

from __future__ import annotations

import sys

from confluent_kafka import KafkaError, Message, Producer


def main(bootstrap: str = "localhost:9092", topic: str = "greetings", *, count: int = 100) -> None:
    acknowledged = 0

    def delivered(error: KafkaError | None, message: Message) -> None:
        nonlocal acknowledged
        if error is not None:
            print(f"lost: {error}", file=sys.stderr)
        else:
            acknowledged += 1

    # Idempotence: a request retried after a broken connection is not written twice.
    producer = Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": "lz4", "linger.ms": 5}
    )
    for number in range(count):
        producer.produce(
            topic,
            key=f"k{number % 7}",
            value=f"greeting {number}",
            headers={"from": b"confluent"},
            on_delivery=delivered,
        )
        producer.poll(0)  # runs the callbacks of finished deliveries
    left = producer.flush(30)
    print(f"{acknowledged} of {count} acknowledged, {left} still under way")


if __name__ == "__main__":
    main(*sys.argv[1:3])

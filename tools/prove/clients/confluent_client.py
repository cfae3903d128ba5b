"""confluent-kafka: librdkafka for Python."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from tools.prove.clients.samples import Sample, Seen, WriteOptions, full_samples

WAIT_S_MAX = 30.0


class ConfluentClient:
    name = "confluent-kafka"

    def missing(self, codec: str) -> str | None:
        try:
            import confluent_kafka  # noqa: F401
        except ImportError:
            return "confluent-kafka is not installed"
        return None

    def samples(self) -> Sequence[Sample]:
        return full_samples()

    def write(self, bootstrap: str, topic: str, samples: Sequence[Sample], options: WriteOptions) -> None:
        from confluent_kafka import Producer

        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": options.acks,
                "enable.idempotence": options.idempotent,
                "compression.type": options.codec,
                "linger.ms": 20,
                "log_level": 0,
            }
        )
        failed: list[Any] = []
        for sample in samples:
            producer.produce(
                topic,
                sample.value,
                sample.key,
                partition=0,
                timestamp=0 if sample.timestamp is None else sample.timestamp,  # 0: the time of sending
                headers=list(sample.headers),
                on_delivery=lambda error, _: failed.append(error) if error is not None else None,
            )
        left = producer.flush(WAIT_S_MAX)
        if left or failed:
            raise AssertionError(f"confluent-kafka: {left} records were not delivered, failures: {failed[:3]}")

    def read(self, bootstrap: str, topic: str, offset: int, count: int) -> list[Seen]:
        from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, TopicPartition

        seen: list[Seen] = []
        consumer = self._consumer(bootstrap)
        try:
            consumer.assign([TopicPartition(topic, 0, offset)])
            deadline = time.monotonic() + WAIT_S_MAX
            while len(seen) < count and time.monotonic() < deadline:
                for message in consumer.consume(count - len(seen), 0.5):
                    if message.error() is not None:
                        raise AssertionError(f"confluent-kafka: {message.error()}")
                    kind, timestamp = message.timestamp()
                    assert kind != TIMESTAMP_NOT_AVAILABLE
                    headers = tuple(message.headers() or ())
                    seen.append(Seen(message.offset(), timestamp, message.key(), message.value(), headers))
        finally:
            consumer.close()
        return seen

    def offset_for_time(self, bootstrap: str, topic: str, timestamp: int) -> int:
        from confluent_kafka import TopicPartition

        consumer = self._consumer(bootstrap)
        try:
            (found,) = consumer.offsets_for_times([TopicPartition(topic, 0, timestamp)], timeout=WAIT_S_MAX)
            return int(found.offset)
        finally:
            consumer.close()

    def _consumer(self, bootstrap: str) -> Any:
        from confluent_kafka import Consumer

        return Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "check.crcs": True,
                "log_level": 0,
            }
        )

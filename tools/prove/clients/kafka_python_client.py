"""kafka-python: pure Python; every codec but gzip needs an extra library."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from tools.prove.clients.samples import Sample, Seen, WriteOptions, full_samples

WAIT_S_MAX = 30.0
LIBRARIES = {"snappy": "python-snappy", "lz4": "lz4", "zstd": "zstandard"}


class KafkaPythonClient:
    name = "kafka-python"

    def missing(self, codec: str) -> str | None:
        try:
            from kafka import codec as codecs
        except ImportError:
            return "kafka-python is not installed"
        if codec != "none" and not getattr(codecs, f"has_{codec}")():
            return f"kafka-python needs {LIBRARIES[codec]} for {codec}"
        return None

    def samples(self) -> Sequence[Sample]:
        """Return the samples without null headers, which the client refuses."""
        return [
            sample._replace(headers=tuple((name, value) for name, value in sample.headers if value is not None))
            for sample in full_samples(bare=False)
        ]

    def write(self, bootstrap: str, topic: str, samples: Sequence[Sample], options: WriteOptions) -> None:
        from kafka import KafkaProducer

        producer = KafkaProducer(
            bootstrap_servers=bootstrap,
            acks="all" if options.acks == "all" else int(options.acks),
            enable_idempotence=options.idempotent,
            compression_type=None if options.codec == "none" else options.codec,
            linger_ms=20,
        )
        try:
            sent = [
                producer.send(
                    topic,
                    value=sample.value,
                    key=sample.key,
                    partition=0,
                    timestamp_ms=sample.timestamp,
                    headers=list(sample.headers),
                )
                for sample in samples
            ]
            producer.flush(WAIT_S_MAX)
            for future in sent:
                future.get(WAIT_S_MAX)
        finally:
            producer.close(WAIT_S_MAX)

    def read(self, bootstrap: str, topic: str, offset: int, count: int) -> list[Seen]:
        from kafka import TopicPartition

        seen: list[Seen] = []
        consumer = self._consumer(bootstrap)
        try:
            partition = TopicPartition(topic, 0)
            consumer.assign([partition])
            consumer.seek(partition, offset)
            deadline = time.monotonic() + WAIT_S_MAX
            while len(seen) < count and time.monotonic() < deadline:
                for messages in consumer.poll(timeout_ms=500).values():
                    for message in messages:
                        headers = tuple((name, value) for name, value in message.headers)
                        seen.append(Seen(message.offset, message.timestamp, message.key, message.value, headers))
        finally:
            consumer.close()
        return seen[:count]

    def offset_for_time(self, bootstrap: str, topic: str, timestamp: int) -> int:
        from kafka import TopicPartition

        consumer = self._consumer(bootstrap)
        try:
            partition = TopicPartition(topic, 0)
            found = consumer.offsets_for_times({partition: timestamp})[partition]
            return -1 if found is None else int(found.offset)
        finally:
            consumer.close()

    def _consumer(self, bootstrap: str) -> Any:
        from kafka import KafkaConsumer

        return KafkaConsumer(
            bootstrap_servers=bootstrap,
            group_id=None,
            enable_auto_commit=False,
            auto_offset_reset="none",
            check_crcs=True,
        )

"""Reads of whole topics with new clients, with either isolation level."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from testkit.history import Place

READ_S_MAX = 60.0
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"
# Otherwise a confluent-kafka client that has lost its only broker would bootstrap again, once a second, and forget the
# coordinator for the offsets of a transaction: it would wait forever (librdkafka 5456 and 5511).
RECONNECT = {
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "metadata.recovery.strategy": "none",
    "log_level": 0,
}
READER = {"enable.auto.commit": False, "auto.offset.reset": "error", "check.crcs": True, **RECONNECT}
Records = list[tuple[int, str]]  # offsets and values


def create_topics(bootstrap: str, topics: Sequence[str], partitions: int, replicas: int = 1) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.create_topics([NewTopic(topic, partitions, replicas) for topic in topics]).values():
        future.result(READ_S_MAX)


def keep(message: Any, found: dict[Place, Records]) -> None:
    """Add the offset and value of a message to what was found in its partition."""
    place = message.topic(), message.partition()
    found.setdefault(place, []).append((message.offset(), message.value().decode()))


def ends(bootstrap: str, places: Sequence[Place], isolation: str) -> dict[Place, int]:
    """Return the end of each log for this isolation level."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "ends", "isolation.level": isolation, **READER})
    try:
        return {place: consumer.get_watermark_offsets(TopicPartition(*place), READ_S_MAX)[1] for place in places}
    finally:
        consumer.close()


def undecided(bootstrap: str, places: Sequence[Place]) -> list[Place]:
    """Return the partitions with an open transaction."""
    stable = ends(bootstrap, places, COMMITTED)
    return [place for place, end in ends(bootstrap, places, UNCOMMITTED).items() if end != stable[place]]


def read_all(bootstrap: str, places: Sequence[Place], isolation: str) -> dict[Place, Records]:
    """Read everything with a new client that verifies every checksum."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    final: dict[Place, Records] = {place: [] for place in places}
    settings = {"group.id": "final", "isolation.level": isolation, "enable.partition.eof": True}
    consumer = Consumer({"bootstrap.servers": bootstrap, **READER, **settings})
    try:
        consumer.assign([TopicPartition(*place, 0) for place in places])
        deadline = time.monotonic() + READ_S_MAX
        left = set(places)
        while left:
            assert time.monotonic() < deadline, f"not all records could be read within {READ_S_MAX:.0f} s"
            for message in consumer.consume(1000, 0.2):
                error = message.error()
                if error is None:
                    keep(message, final)
                elif error.code() == KafkaError._PARTITION_EOF:
                    left.discard((message.topic(), message.partition()))
                else:
                    raise AssertionError(f"the read failed: {error}")
    finally:
        consumer.close()
    return final

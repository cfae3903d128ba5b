"""A read_committed reader of whole topics with confluent-kafka, the same for every server."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from bench.errors import BenchFailed
from headrace.testing.processes import LOOPBACK

if TYPE_CHECKING:
    from confluent_kafka import Message

SILENCE_S_MAX = 60.0  # time without a record before reading fails
POLL_S = 0.1


def reader_missing() -> str | None:
    return None if find_spec("confluent_kafka") is not None else "confluent_kafka is not installed"


def json_value(message: Message) -> Any:
    """Return the decoded value of a record; the shop writes no tombstones."""
    value = message.value()
    assert value is not None, f"{message.topic()} has a record without a value"
    return json.loads(value)


class TopicReader:
    def __init__(self, port: int, *topics: str, partitions: int) -> None:
        """Assign all partitions of the topics, which must exist."""
        from confluent_kafka import Consumer, KafkaError, TopicPartition

        self._end_code = KafkaError._PARTITION_EOF
        self._partitions = [TopicPartition(topic, index, 0) for topic in topics for index in range(partitions)]
        self._ended: set[tuple[str, int]] = set()  # partitions whose end, as it was at the time, has been reached
        self._consumer = Consumer(
            {
                "bootstrap.servers": f"{LOOPBACK}:{port}",
                "group.id": "bench",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "enable.metrics.push": False,  # avoids log messages about it
            }
        )
        self._consumer.assign(self._partitions)

    def __enter__(self) -> TopicReader:
        return self

    def __exit__(self, *exc: object) -> None:
        self._consumer.close()

    def next(self, seconds_max: float = POLL_S) -> Message | None:
        """Return the next record, or None if there is none within the timeout or a partition ends."""
        message = self._consumer.poll(seconds_max)
        if message is None:
            return None
        error = message.error()
        if error is None:
            return message
        if error.code() != self._end_code:
            raise BenchFailed(f"{message.topic()} cannot be read: {error}")
        topic, partition = message.topic(), message.partition()
        assert topic is not None and partition is not None, "the end of a partition names the partition"
        self._ended.add((topic, partition))
        return None

    def read_to_the_end(self) -> Iterator[Message]:
        """Yield all records up to the end of each partition."""
        deadline = time.monotonic() + SILENCE_S_MAX
        while len(self._ended) < len(self._partitions):
            message = self.next()
            if message is not None:
                deadline = time.monotonic() + SILENCE_S_MAX
                yield message
            elif time.monotonic() > deadline:
                raise BenchFailed(f"no record for {SILENCE_S_MAX:.0f} s before the end of {self._partitions}")

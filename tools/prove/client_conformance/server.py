"""The server under test: a single-node cluster, inspected with librdkafka and with Headrace's own client."""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import confluent_kafka
from testkit.kafka_peer import KafkaPeer

from headrace.base.errors import KafkaError
from headrace.client import Admin, Consumer, NewTopic, TopicPartition
from headrace.client.consumer.decoding import ConsumerRecord
from headrace.testing.processes import NodeProcess

WAIT_S_MAX = 60.0


class ServerUnderTest:
    """A running server with functions to create topics and to read them completely."""

    def __init__(self, name: str, process: NodeProcess | KafkaPeer) -> None:
        self.name = name
        self.process = process

    @property
    def bootstrap(self) -> str:
        return self.process.bootstrap

    def options(self, **named: object) -> dict[str, object]:
        """Return client options; keyword names have underscores instead of Kafka's dots."""
        return {"bootstrap.servers": self.bootstrap, **{name.replace("_", "."): one for name, one in named.items()}}

    def topic(self, partitions: int = 1) -> str:
        """Create a topic, wait until it has leaders and return its name."""
        name = unique("t")
        deadline = time.monotonic() + WAIT_S_MAX
        with Admin(self.options()) as admin:
            admin.create_topics([NewTopic(name, partitions)])
            while True:  # until the brokers know it too
                with suppress(KafkaError):
                    if all(one.leader >= 0 for one in admin.describe_topics([name])[name].partitions):
                        return name
                assert time.monotonic() < deadline, f"{self.name}: {name} has no leaders after {WAIT_S_MAX:.0f} s"
                time.sleep(0.05)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Suspend the server: connections stay open, but nothing responds."""
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)

    # --- reading everything

    def read(self, topic: str, partitions: int = 1, isolation: str = "read_committed") -> list[list[ConsumerRecord]]:
        """Read whole partitions with Headrace's consumer."""
        places = [TopicPartition(topic, index) for index in range(partitions)]
        found: list[list[ConsumerRecord]] = [[] for _ in places]
        deadline = time.monotonic() + WAIT_S_MAX
        options = self.options(auto_offset_reset="earliest", isolation_level=isolation, max_poll_records=10_000)
        with Consumer(options) as consumer:
            consumer.assign(places)
            ends = consumer.end_offsets(places)
            while any(consumer.position(place) < ends[place] for place in places):
                assert time.monotonic() < deadline, f"{self.name}: {topic} cannot be read to its end"
                for record in consumer.poll(0.5):
                    found[record.partition].append(record)
        return found

    def confluent_read(self, topic: str, partitions: int = 1, isolation: str = "read_committed") -> list[list[Any]]:
        """Read whole partitions with librdkafka, which verifies all checksums."""
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "unused",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": isolation,
                "enable.partition.eof": True,
                "check.crcs": True,
                "log_level": 2,
            }
        )
        consumer.assign([confluent_kafka.TopicPartition(topic, index, 0) for index in range(partitions)])
        found: list[list[Any]] = [[] for _ in range(partitions)]
        ended: set[int] = set()
        while len(ended) < partitions:
            message: Any = consumer.poll(WAIT_S_MAX)
            assert message is not None, f"{self.name}: librdkafka cannot read {topic} to its end"
            if message.error() is None:
                found[message.partition()].append(message)
            else:
                assert message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF, message.error()
                ended.add(message.partition())
        consumer.close()
        return found


def unique(prefix: str) -> str:
    """Return a name that is used only once."""
    return f"{prefix}-{uuid.uuid4().hex[:12]}"

"""One data directory served by Headrace and by Apache Kafka in turn, each of which finds everything in it."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewPartitions,
    NewTopic,
    ResourceType,
)
from testkit.kafka_peer import KafkaPeer

from headrace.testing.processes import NodeProcess
from tools.prove.registry import print_progress
from tools.prove.storage.swapping_transactions import SETTINGS, Transactions

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
RECORDS = 60  # per codec, topic and turn
WAIT_S = 30.0
RETRY_S = 0.1
TEN_YEARS_MS = 315_360_000_000
TOPIC_CONFIGS = {"retention.ms": str(TEN_YEARS_MS), "segment.bytes": "1048576", "max.message.bytes": "900000"}
HEADERS: list[list[tuple[str, str | bytes | None]] | None] = [None, [("a", b"1"), ("a", None)]]

Record = tuple[int, int, bytes | None, bytes | None, int, tuple[tuple[str, bytes | None], ...]]


@dataclass
class Contents:
    """What a client can see of a cluster: partitions, topic configs and records by topic."""

    partitions: dict[str, int] = field(default_factory=dict)
    configs: dict[str, dict[str, str]] = field(default_factory=dict)
    broker_configs: dict[str, str] = field(default_factory=dict)
    log_starts: dict[tuple[str, int], int] = field(default_factory=dict)
    records: dict[str, list[Record]] = field(default_factory=dict)

    def count(self) -> int:
        return sum(map(len, self.records.values()))


def results(futures: dict[Any, Any]) -> dict[Any, Any]:
    """Wait for the futures and return their results."""
    return {key: future.result(WAIT_S) for key, future in futures.items()}


def read_contents(bootstrap: str) -> Contents:
    """Read everything that a client can see."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    found = Contents()
    topics = {
        name: topic for name, topic in admin.list_topics(timeout=WAIT_S).topics.items() if not name.startswith("__")
    }
    found.partitions = {name: len(topic.partitions) for name, topic in sorted(topics.items())}
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in found.partitions]
    for resource, entries in results(admin.describe_configs(resources)).items() if resources else ():
        found.configs[resource.name] = _set_by(entries, ConfigSource.DYNAMIC_TOPIC_CONFIG)
    broker = results(admin.describe_configs([ConfigResource(ResourceType.BROKER, "1")]))
    for entries in broker.values():
        found.broker_configs = _set_by(entries, ConfigSource.DYNAMIC_BROKER_CONFIG)
        found.broker_configs |= _set_by(entries, ConfigSource.DYNAMIC_DEFAULT_BROKER_CONFIG)
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        for name, count in found.partitions.items():
            found.records[name] = []
            for partition in range(count):
                low, high = _ends(consumer, TopicPartition(name, partition))
                found.log_starts[name, partition] = low
                found.records[name] += _read(consumer, name, partition, low, high)
    finally:
        consumer.close()
    return found


def _set_by(entries: dict[str, Any], source: ConfigSource) -> dict[str, str]:
    return {name: entry.value for name, entry in sorted(entries.items()) if entry.source == source.value}


def _ends(consumer: Consumer, place: TopicPartition) -> tuple[int, int]:
    """Return low and high watermark, retrying because Kafka responds before it leads all its partitions."""
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            low, high = consumer.get_watermark_offsets(place, timeout=WAIT_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION or time.monotonic() > deadline:
                raise
            time.sleep(RETRY_S)
        else:
            return low, high


def _read(consumer: Consumer, topic: str, partition: int, low: int, high: int) -> list[Record]:
    records: list[Record] = []
    consumer.assign([TopicPartition(topic, partition, low)])
    while True:
        message: Message | None = consumer.poll(WAIT_S)
        assert message is not None, f"no records of {topic}-{partition} for {WAIT_S:.0f} s, from {low} to {high}"
        if (error := message.error()) is not None:
            assert error.code() == KafkaError._PARTITION_EOF, f"{topic}-{partition}: {error}"
            break
        headers = tuple(cast("list[tuple[str, bytes | None]]", message.headers() or []))
        offset = message.offset()
        assert offset is not None
        records.append((partition, offset, message.key(), message.value(), message.timestamp()[1], headers))
    consumer.unassign()
    assert not records or records[-1][1] < high
    return records


def write(bootstrap: str, turn: int, random: Random) -> None:
    """Create a topic, add a partition and change a config of an old one, write all kinds of records, delete some."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    results(
        admin.create_topics(
            [NewTopic(f"turn-{turn}", 3, 1, config=TOPIC_CONFIGS | {"retention.bytes": str(10**9 + turn)})]
        )
    )
    topics = [f"turn-{turn}"]
    if turn:
        old = f"turn-{turn - 1}"
        topics.append(old)
        results(admin.create_partitions([NewPartitions(old, 3 + turn)]))
        _alter(admin, ResourceType.TOPIC, old, "retention.ms", str(TEN_YEARS_MS + turn))
        _alter(admin, ResourceType.BROKER, "1", "log.cleaner.threads", str(1 + turn % 2))
        results(admin.delete_records([TopicPartition(old, 0, 5)]))
    for number, codec in enumerate(CODECS):
        idempotent = number % 2 == 0
        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "compression.type": codec,
                "enable.idempotence": idempotent,
                "linger.ms": 5,
            }
        )
        for topic in topics:
            for _ in range(RECORDS):
                producer.produce(
                    topic,
                    value=random.choice([None, b"", random.randbytes(random.randrange(1, 800))]),
                    key=random.choice([None, b"", random.randbytes(8)]),
                    headers=random.choice(HEADERS),
                    timestamp=1_700_000_000_000 + random.randrange(10**9),
                    on_delivery=_delivered,
                )
        assert producer.flush(WAIT_S) == 0


def _alter(admin: AdminClient, kind: ResourceType, name: str, option: str, value: str) -> None:
    entry = ConfigEntry(option, value, incremental_operation=AlterConfigOpType.SET)
    results(admin.incremental_alter_configs([ConfigResource(kind, name, incremental_configs=[entry])]))


def _delivered(error: Any, _: Message) -> None:
    assert error is None, f"a record was not acknowledged: {error}"


def compare(before: Contents, after: Contents, server: str) -> None:
    """Raise AssertionError if the server shows other contents than its predecessor."""
    for part in ("partitions", "configs", "broker_configs", "log_starts"):
        old, new = getattr(before, part), getattr(after, part)
        assert old == new, f"{server} shows other {part}: {old} became {new}"
    for topic, records in before.records.items():
        got = after.records[topic]
        wrong = next((pair for pair in zip(records, got, strict=False) if pair[0] != pair[1]), None)
        assert wrong is None and len(got) == len(records), (
            f"{server} has {len(got)} of {len(records)} records of {topic}; the first difference: {wrong}"
        )


def swap(turns: int, seed: int) -> str:
    """Let the servers take turns, Headrace first, and return a summary.

    Each server opens the directory, must find everything, ends the open transactions and writes more.
    """
    random = Random(seed)
    before = Contents()
    transactions = Transactions()
    with tempfile.TemporaryDirectory(prefix="headrace-swap-") as directory:
        for turn in range(turns):
            server = (NodeProcess, KafkaPeer)[turn % 2](SETTINGS, directory=Path(directory))
            name = f"{('Headrace', 'Kafka')[turn % 2]} in turn {turn}"
            print_progress(f"{name} must find {before.count()} records")
            server.start()
            try:
                if turn:
                    compare(before, read_contents(server.bootstrap), name)
                    transactions.continue_on(server.bootstrap)
                else:
                    transactions.create_topic(server.bootstrap)
                write(server.bootstrap, turn, random)
                before = read_contents(server.bootstrap)
                transactions.leave_open(server.bootstrap, turn)
            except BaseException:
                print_progress(f"the log of {name} ends with: {server.log_text()[-3000:]}")
                server.close()
                raise
            server.terminate() if isinstance(server, NodeProcess) else server.stop()
            transactions.check_not_timed_out()
    figures = f"{before.count()} records, {len(before.partitions)} topics, {transactions.ended} transactions"
    return f"{turns} turns, {figures}, seed {seed}"

"""Topics with every kind of content for readers, written identically on any broker by a third-party client."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

WAIT_S_MAX = 60.0
CODECS = ("gzip", "snappy", "lz4", "zstd")
PLAIN, COMMITTED, APPENDED, TRIMMED = "plain", "transactions", "append-time", "trimmed"
RECORDS, CODEC_RECORDS, TRIMMED_RECORDS, APPENDED_RECORDS = 600, 300, 100, 50
TRIMMED_BEFORE = 40
STEP_MS = 10  # between the timestamps of records
TRANSACTIONS, TRANSACTION_RECORDS = 10, 8
OPEN_MS_MAX = 900_000

NewRecord = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]  # key, value, headers, timestamp


def create(bootstrap: str, topics: dict[str, int], replicas: int = 1, **configs: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    config = {name.replace("_", "."): value for name, value in configs.items()}
    new = [NewTopic(topic, partitions, replicas, config=config) for topic, partitions in topics.items()]
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.create_topics(new, operation_timeout=WAIT_S_MAX).values():
        future.result(WAIT_S_MAX)


def records(topic: str, numbers: Iterable[int], base_ms: int) -> Iterator[NewRecord]:
    for number in numbers:
        key = None if number % 5 == 4 else f"key {number % 37}".encode()
        value = None if number % 7 == 6 else b"" if number % 11 == 10 else f"{topic} {number} ".encode() * (number % 13)
        headers: list[tuple[str, bytes | None]] = [("number", b"%d" % number)] if number % 3 == 0 else []
        headers += [("same", b"\x00\xff"), ("same", None), ("", b"")] if number % 4 == 0 else []
        yield key, value, headers, base_ms + STEP_MS * (number - 20 * (number % 17 == 0))


def write(bootstrap: str, topic: str, new_records: Iterable[NewRecord], partitions: int, **settings: Any) -> None:
    """Write to the first `partitions` in turn, so that offsets are the same on all brokers."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0, "enable.idempotence": True, **settings})
    _send(producer, topic, new_records, partitions)
    assert producer.flush(WAIT_S_MAX) == 0, f"{topic} could not be written"


def _send(producer: Any, topic: str, new_records: Iterable[NewRecord], partitions: int) -> None:
    for index, (key, value, headers, timestamp) in enumerate(new_records):
        producer.produce(topic, value, key, partition=index % partitions, headers=headers or None, timestamp=timestamp)


def write_transactions(bootstrap: str, topic: str, partitions: int, base_ms: int) -> Any:
    """Write committed, aborted and non-transactional records in turn; return a producer with an open transaction."""
    from confluent_kafka import Producer

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "log_level": 0,
            "transactional.id": "same-rows",
            "transaction.timeout.ms": OPEN_MS_MAX,
        }
    )
    producer.init_transactions(WAIT_S_MAX)
    for turn in range(TRANSACTIONS):
        numbers = range(turn * TRANSACTION_RECORDS, (turn + 1) * TRANSACTION_RECORDS)
        if turn % 4 == 3:
            write(bootstrap, topic, records(topic, numbers, base_ms), partitions)
            continue
        producer.begin_transaction()
        _send(producer, topic, records(topic, numbers, base_ms), partitions)
        assert producer.flush(WAIT_S_MAX) == 0, f"{topic} could not be written"
        if turn % 4 == 1:
            producer.abort_transaction(WAIT_S_MAX)
        else:
            producer.commit_transaction(WAIT_S_MAX)
    producer.begin_transaction()
    _send(producer, topic, records(topic, range(6), base_ms), partitions)
    assert producer.flush(WAIT_S_MAX) == 0, f"{topic} could not be written"
    return producer


def fill(bootstrap: str, base_ms: int) -> Any:
    """Create and fill all topics. Keep the returned producer for as long as its transaction should stay open."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

    create(bootstrap, {PLAIN: 3, COMMITTED: 2, TRIMMED: 1, **{f"codec-{codec}": 2 for codec in CODECS}})
    create(bootstrap, {APPENDED: 1}, message_timestamp_type="LogAppendTime")
    write(bootstrap, PLAIN, records(PLAIN, range(RECORDS), base_ms), 2)
    for codec in CODECS:
        topic = f"codec-{codec}"
        new_records = records(topic, range(CODEC_RECORDS), base_ms)
        write(bootstrap, topic, new_records, 2, **{"compression.type": codec, "linger.ms": 50})
    write(bootstrap, APPENDED, records(APPENDED, range(APPENDED_RECORDS), base_ms), 1)
    write(bootstrap, TRIMMED, records(TRIMMED, range(TRIMMED_RECORDS), base_ms), 1)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for done in admin.delete_records([TopicPartition(TRIMMED, 0, TRIMMED_BEFORE)]).values():
        done.result(WAIT_S_MAX)
    return write_transactions(bootstrap, COMMITTED, 2, base_ms)

"""The choice of partitions: by key as Java's producer does, and without keys in whole batches to all partitions."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from random import Random

import pyarrow as pa
from testkit.kafka_peer import java

from headrace.client import Producer
from headrace.records.kernel import partition_for_key
from tools.prove.client_conformance.server import WAIT_S_MAX, ServerUnderTest

KEYS = 10_000
COUNTS = (1, 2, 3, 7, 12, 50, 1000)
SENT_TO = 7  # partitions of the topic that the keys are sent to
JAVA_S_MAX = 60.0
SOURCE = Path(__file__).with_name("Partitions.java")


@cache
def keys() -> list[bytes]:
    random = Random(3)
    some = [b"", b"a", "grüße".encode(), bytes(256)]
    return [*some, *(random.randbytes(random.randrange(1, 200)) for _ in range(KEYS - len(some)))]


@cache
def partitions_in_java() -> list[list[int]]:
    """Return the partition that Java chooses for each key, for each of COUNTS."""
    done = subprocess.run(
        java(str(SOURCE), *map(str, COUNTS)),  # a source file instead of a class: Java compiles it at start
        input="".join(f"{key.hex()}\n" for key in keys()),
        capture_output=True,
        text=True,
        timeout=JAVA_S_MAX,
    )
    assert done.returncode == 0, f"Java: {done.stderr[-2000:]}"
    return [list(map(int, line.split())) for line in done.stdout.splitlines()]


def partitioners(server: ServerUnderTest) -> str:
    expected = partitions_in_java()
    assert len(expected) == KEYS
    for key, theirs in zip(keys(), expected, strict=True):
        ours = [partition_for_key(key, count) for count in COUNTS]
        assert ours == theirs, f"key {key.hex()}: Java chooses {theirs} of {COUNTS} partitions, Headrace {ours}"
    topic = server.topic(SENT_TO)
    with Producer(server.options()) as producer:
        sent = [producer.send(topic, b"record", key) for key in keys()]
        rows = {"key": pa.array(keys(), pa.binary()), "value": pa.array([b"row"] * KEYS, pa.binary())}
        producer.send_batch(topic, pa.table(rows)).result(WAIT_S_MAX)
        chosen = [one.result(WAIT_S_MAX).partition for one in sent]
    column = COUNTS.index(SENT_TO)
    assert chosen == [one[column] for one in expected], "send chose other partitions than Java"
    found = {key: theirs[column] for key, theirs in zip(keys(), expected, strict=True)}
    for index, records in enumerate(server.read(topic, SENT_TO)):
        wrong = [one.key for one in records if one.key is None or found[one.key] != index]
        assert not wrong, f"{len(wrong)} keys are in partition {index} where Java does not put them"
    _without_keys(server)
    return f"{KEYS} keys with {len(COUNTS)} partition counts"


def _without_keys(server: ServerUnderTest) -> None:
    topic = server.topic(4)
    with Producer(server.options(batch_size=1000)) as producer:
        for _ in range(4000):
            producer.send(topic, b"x" * 50)
        producer.flush()
        per_batch = producer.metrics()["records-per-request-avg"]
    sizes = [len(records) for records in server.read(topic, 4)]
    assert sum(sizes) == 4000 and min(sizes) > 400, f"sticky: {sizes}"
    assert per_batch > 4, f"sticky: {per_batch} records per request"
    topic = server.topic(4)
    with Producer(server.options(partitioner_class="round_robin")) as producer:
        for _ in range(400):
            producer.send(topic, b"x", b"the same key")
    assert [len(records) for records in server.read(topic, 4)] == [100] * 4
    topic = server.topic(4)
    with Producer(server.options(), partitioner=lambda topic, key, value, count: len(value or b"") % count) as producer:
        for size in range(400):
            producer.send(topic, b"x" * size, b"the same key")
    for index, records in enumerate(server.read(topic, 4)):
        sizes = [len(one.value) for one in records if one.value is not None]
        assert len(sizes) == len(records) == 100 and all(size % 4 == index for size in sizes)

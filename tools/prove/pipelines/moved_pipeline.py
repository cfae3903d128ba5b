"""Two of the examples, moved to another Spark and another Kafka by two settings, without changing their files.

librdkafka writes the input and reads the output.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.prove.commands import run
from tools.prove.registry import ROOT
from tools.prove.spark.standalone import environment

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

EXAMPLES = ("clean_and_route", "deduplicate")
COPIES = 200  # copies of the example's lines, each with distinct ids
PARTITIONS = 3
INPUTS = ("incoming-orders", "payments")
OUTPUTS = ("orders-de", "orders-fr", "rejected-orders", "incoming-orders-unreadable", "payments-once")
RUN_S_MAX = 300.0
TOPICS_S_MAX = 60.0
READ_S = 10.0

Record = tuple[bytes | None, bytes | None]  # key and value
Found = Mapping[str, list[Record]]  # by topic, sorted because partitions have no common order


class MovedPipeline:
    """The example pipelines, run with different servers and Sparks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._runs = 0

    def run(self, bootstrap: str, master: str) -> Found:
        """Run the examples and return everything in their result topics."""
        self._runs += 1
        folder = self._folder / f"run-{self._runs}"
        for name in EXAMPLES:
            shutil.copytree(ROOT / "examples" / "pipelines" / name, folder / name, ignore=shutil.ignore_patterns(".*"))
        _recreate_topics(bootstrap)
        _write(bootstrap)
        command = [
            sys.executable,
            "-m",
            "headrace",
            "pipelines",
            "run",
            *(str(folder / one) for one in EXAMPLES),
            "--once",
        ]
        moved = ["--bootstrap-server", bootstrap, "--master", master]
        run([*command, *moved], cwd=folder, timeout_s=RUN_S_MAX, environment=environment())
        return {topic: _read(bootstrap, topic) for topic in OUTPUTS}

    def check(self, results: Mapping[str, Found]) -> None:
        """Check that all runs have the same results, and that they match the examples' own tests."""
        (first, wanted), *others = results.items()
        for name, found in others:
            for topic, records in found.items():
                assert records == wanted[topic], f"{topic}: the records of {name} differ from those of {first}"
        counts = {topic: len(records) for topic, records in wanted.items()}
        each = dict(zip(OUTPUTS, (2, 1, 2, 2, 3), strict=True))
        assert counts == {topic: COPIES * count for topic, count in each.items()}, counts
        for topic in ("orders-de", "payments-once"):
            assert len({value for _, value in wanted[topic]}) == counts[topic], f"{topic} has duplicate records"


def _lines() -> dict[str, list[str]]:
    """Return the examples' lines, copied; a row's id is made unique for each copy."""
    found: dict[str, list[str]] = {}
    for topic, file in zip(
        INPUTS, ("clean_and_route/incoming-orders.jsonl", "deduplicate/payments.jsonl"), strict=True
    ):
        lines = (ROOT / "examples" / "pipelines" / file).read_text().splitlines()
        found[topic] = [_renumbered(line, copy) for copy in range(COPIES) for line in lines]
    return found


def _renumbered(line: str, copy: int) -> str:
    try:
        row: dict[str, Any] = json.loads(line)
    except ValueError:
        return line
    row["id"] = row["id"] + copy * 10 if isinstance(row["id"], int) else f"{row['id']}-{copy}"
    return json.dumps(row)


def _recreate_topics(bootstrap: str) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": bootstrap})
    names = [*INPUTS, *OUTPUTS]
    old = [name for name in names if name in _topics(admin)]
    for done in admin.delete_topics(old).values() if old else ():
        done.result(TOPICS_S_MAX)
    deadline = time.monotonic() + TOPICS_S_MAX
    left = set(names)
    while left:  # a deleted topic may briefly block the creation of its successor
        creations = admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in left])
        for name, done in creations.items():
            try:
                done.result(TOPICS_S_MAX)
                left.discard(name)
            except KafkaException:
                assert time.monotonic() < deadline, f"{name} cannot be created"
        time.sleep(0.2)


def _topics(admin: AdminClient) -> set[str]:
    return set(admin.list_topics(timeout=TOPICS_S_MAX).topics)


def _write(bootstrap: str) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    for topic, lines in _lines().items():
        for line in lines:
            producer.produce(topic, line, partition=0)  # deduplication keeps the first record, so order matters
    left = producer.flush(TOPICS_S_MAX)
    assert left == 0, f"{left} records were not written"


def _read(bootstrap: str, topic: str) -> list[Record]:
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "moved-pipeline",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    found: list[Record] = []
    ended = 0
    try:
        consumer.assign([TopicPartition(topic, one, OFFSET_BEGINNING) for one in range(PARTITIONS)])
        while ended < PARTITIONS:
            message = consumer.poll(READ_S)
            assert message is not None, f"{topic} cannot be read to its end"
            error = message.error()
            if error is not None:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended += 1
                continue
            found.append((message.key(), message.value()))
    finally:
        consumer.close()
    return sorted(found, key=repr)

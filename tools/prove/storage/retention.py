"""Retention, rolling and changed configs on a running node, observed only with Kafka's own tools."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer
from testkit.kafka_peer import tool

from headrace.testing.processes import NodeProcess
from tools.prove.registry import print_progress

TOPIC = "aging"
MIB = 1024 * 1024
SETTINGS = {
    "log.retention.check.interval.ms": "300",
    "log.segment.delete.delay.ms": "200",
    "log.initial.task.delay.ms": "100",
}
RECORD_BYTES = 8000
WAIT_S = 60.0
HOUR_MS = 3_600_000


class Topic:
    """One topic of a node, changed and observed with Kafka's tools."""

    def __init__(self, node: NodeProcess) -> None:
        self.node = node

    def call(self, name: str, *arguments: str) -> str:
        """Run one of Kafka's tools and return its output. Raise AssertionError if it fails."""
        done = tool(name, *arguments, "--bootstrap-server", self.node.bootstrap)
        text = (done.stdout + done.stderr).decode(errors="replace")
        assert done.returncode == 0, f"kafka-{name} {' '.join(arguments)} exited with {done.returncode}: {text[-1000:]}"
        return text

    def create(self, **configs: str) -> None:
        options = [
            part for name, value in configs.items() for part in ("--config", f"{name.replace('_', '.')}={value}")
        ]
        self.call("topics", "--create", "--topic", TOPIC, "--partitions", "1", *options)

    def alter(self, **configs: str) -> None:
        given = ",".join(f"{name.replace('_', '.')}={value}" for name, value in configs.items())
        self.call("configs", "--alter", "--entity-type", "topics", "--entity-name", TOPIC, "--add-config", given)

    def offset(self, which: str) -> int:
        return int(self.call("get-offsets", "--topic", TOPIC, "--time", which).split(":")[2])

    def size(self) -> int:
        output = self.call("log-dirs", "--describe", "--topic-list", TOPIC)
        found = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
        return int(found["brokers"][0]["logDirs"][0]["partitions"][0]["size"])

    def wait_until(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, f"{what}: not within {WAIT_S:.0f} s"

    def segments(self) -> list[int]:
        """Return the base offsets from the file names, without `.deleted` files."""
        return sorted(int(path.stem) for path in (self.node.data_dir / f"{TOPIC}-0").glob("*.log"))

    def produce(self, count: int, *, age_ms: int = 0) -> None:
        producer = Producer({"bootstrap.servers": self.node.bootstrap, "linger.ms": 5, "batch.size": 100_000})
        stamp = int(time.time() * 1000) - age_ms
        for number in range(count):
            producer.produce(TOPIC, number.to_bytes(8, "big") * (RECORD_BYTES // 8), timestamp=stamp)
            producer.poll(0)
        assert producer.flush(WAIT_S) == 0


def check_retention(work: Path) -> str:
    """Check each kind of retention on a running node and return a summary."""
    with NodeProcess(SETTINGS, directory=work) as node:
        topic = Topic(node)
        topic.create(segment_bytes=str(MIB), retention_ms="-1")
        topic.produce(700, age_ms=2 * HOUR_MS)
        rolled = len(topic.segments())
        assert rolled >= 5, f"{topic.size()} bytes are in {rolled} segments, with segment.bytes={MIB}"
        assert (topic.offset("earliest"), topic.offset("latest")) == (0, 700)

        print_progress("retention by size")
        topic.alter(retention_bytes=str(3 * MIB))
        topic.wait_until("retention.bytes", lambda: topic.offset("earliest") > 0)
        topic.wait_until("the size", lambda: 3 * MIB <= topic.size() < 4 * MIB + RECORD_BYTES * 12)
        by_size = topic.offset("earliest")
        assert by_size in topic.segments(), f"the log starts at {by_size}, its segments at {topic.segments()}"

        print_progress("DeleteRecords")
        deletion = work / "deletion.json"
        deletion.write_text(json.dumps({"version": 1, "partitions": [{"topic": TOPIC, "partition": 0, "offset": 650}]}))
        output = topic.call("delete-records", "--offset-json-file", str(deletion))
        assert re.search(r"low_watermark: 650", output), output
        assert topic.offset("earliest") == 650
        topic.wait_until("segments below the log start", lambda: min(topic.segments()) > by_size)

        print_progress("retention by time, and rolling by time")
        topic.alter(retention_bytes="-1", retention_ms=str(HOUR_MS))
        topic.wait_until("retention.ms", lambda: topic.offset("earliest") == 700)
        topic.produce(10)
        before = len(topic.segments())
        topic.alter(segment_ms="1000")
        topic.wait_until("segment.ms", lambda: _rolls(topic, before))
        assert topic.offset("earliest") == 700, "retention deleted records that are younger than retention.ms"

        print_progress("a changed max.message.bytes")
        topic.alter(max_message_bytes="1000")
        failed: list[str] = []
        producer = Producer({"bootstrap.servers": node.bootstrap, "log_level": 0})
        producer.produce(TOPIC, b"x" * 5000, on_delivery=lambda error, _: failed.append(error.name() if error else ""))
        producer.flush(WAIT_S)
        assert failed == ["MSG_SIZE_TOO_LARGE"], (
            f"a record of 5,000 bytes was not refused with max.message.bytes=1000: {failed}"
        )

        latest = topic.offset("latest")
        assert node.terminate() == 0
        node.start()
        assert (topic.offset("earliest"), topic.offset("latest")) == (700, latest), "a restart changed the offsets"
        described = topic.call("configs", "--describe", "--entity-type", "topics", "--entity-name", TOPIC)
        assert "segment.ms=1000" in described and "max.message.bytes=1000" in described, described
    return (
        f"{rolled} segments by size, log start {by_size} by retention.bytes, 650 by DeleteRecords, 700 by retention.ms"
    )


def _rolls(topic: Topic, before: int) -> bool:
    """Produce a record, because rolling by time happens with the next record, as in Kafka."""
    topic.produce(1)
    time.sleep(0.6)
    return len(topic.segments()) > before

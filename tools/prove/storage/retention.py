"""Retention, rolling and changed configs on a running node, seen only through Kafka's own tools."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

from confluent_kafka import Producer
from testkit.kafka_peer import tool

from headrace.testing.processes import NodeProcess
from tools.prove.registry import say

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


class Stage:
    def __init__(self, node: NodeProcess) -> None:
        self.node = node
        self.calls = 0

    def call(self, name: str, *arguments: str) -> str:
        self.calls += 1
        done = tool(name, *arguments, "--bootstrap-server", self.node.bootstrap)
        text = (done.stdout + done.stderr).decode(errors="replace")
        assert done.returncode == 0, f"kafka-{name} {' '.join(arguments)} ended with {done.returncode}: {text[-1000:]}"
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
        said = self.call("log-dirs", "--describe", "--topic-list", TOPIC)
        found = json.loads(next(line for line in said.splitlines() if line.startswith("{")))
        return int(found["brokers"][0]["logDirs"][0]["partitions"][0]["size"])

    def until(self, what: str, condition: Callable[[], bool]) -> None:
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


def watch(work: Path) -> str:
    with NodeProcess(SETTINGS, directory=work) as node:
        stage = Stage(node)
        stage.create(segment_bytes=str(MIB), retention_ms="-1")
        stage.produce(700, age_ms=2 * HOUR_MS)
        rolled = len(stage.segments())
        assert rolled >= 5, f"segment.bytes={MIB}, {stage.size()} bytes, but {rolled} segments"
        assert (stage.offset("earliest"), stage.offset("latest")) == (0, 700)

        say("by size")
        stage.alter(retention_bytes=str(3 * MIB))
        stage.until("retention.bytes", lambda: stage.offset("earliest") > 0)
        stage.until("the size", lambda: 3 * MIB <= stage.size() < 4 * MIB + RECORD_BYTES * 12)
        by_size = stage.offset("earliest")
        assert by_size in stage.segments(), f"the log starts at {by_size}, its segments at {stage.segments()}"

        say("by offset")
        order = work / "deletion.json"
        order.write_text(json.dumps({"version": 1, "partitions": [{"topic": TOPIC, "partition": 0, "offset": 650}]}))
        said = stage.call("delete-records", "--offset-json-file", str(order))
        assert re.search(r"low_watermark: 650", said), said
        assert stage.offset("earliest") == 650
        stage.until("segments below the log start", lambda: min(stage.segments()) > by_size)

        say("by time, and a roll by time")
        stage.alter(retention_bytes="-1", retention_ms=str(HOUR_MS))
        stage.until("retention.ms", lambda: stage.offset("earliest") == 700)
        stage.produce(10)
        before = len(stage.segments())
        stage.alter(segment_ms="1000")
        stage.until("segment.ms", lambda: _grows(stage, before))
        assert stage.offset("earliest") == 700, "young records went with the old ones"

        say("a changed limit")
        stage.alter(max_message_bytes="1000")
        failed: list[str] = []
        producer = Producer({"bootstrap.servers": node.bootstrap, "log_level": 0})
        producer.produce(TOPIC, b"x" * 5000, on_delivery=lambda error, _: failed.append(error.name() if error else ""))
        producer.flush(WAIT_S)
        assert failed == ["MSG_SIZE_TOO_LARGE"], f"5,000 bytes past max.message.bytes=1000: {failed}"

        latest = stage.offset("latest")
        assert node.terminate() == 0
        node.start()
        assert (stage.offset("earliest"), stage.offset("latest")) == (700, latest), "a restart changed the offsets"
        described = stage.call("configs", "--describe", "--entity-type", "topics", "--entity-name", TOPIC)
        assert "segment.ms=1000" in described and "max.message.bytes=1000" in described, described
    return (
        f"{rolled} segments by size, log start {by_size} by retention.bytes, 650 by DeleteRecords, 700 by retention.ms"
    )


def _grows(stage: Stage, before: int) -> bool:
    """Produce a record, because rolling by time happens with the next record, as in Kafka."""
    stage.produce(1)
    time.sleep(0.6)
    return len(stage.segments()) > before

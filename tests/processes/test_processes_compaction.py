"""Compaction of a running node: small forms of the check named compaction, and a node whose topics change under it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from tools.prove import compaction

from headrace.testing.cluster import EmbeddedNode
from headrace.testing.peers import require_kafka

RECORDS, KEYS, KILLS = 60_000, 5_000, 2
WAIT_S = 20.0


@pytest.mark.java
def test_the_last_value_of_every_key_survives_kills_and_kafka_reads_it(tmp_path: Path) -> None:
    require_kafka()
    assert "records became" in compaction.prove(tmp_path, RECORDS, KEYS, KILLS, seed=1)


@pytest.mark.java
def test_kafka_keeps_the_same_records(tmp_path: Path) -> None:
    require_kafka()
    assert "the same" in compaction.same_records_as_kafka(tmp_path, 3000, 400, seed=2, turns=2)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def fill(node: EmbeddedNode, topic: str, count: int = 300) -> None:
    producer = compaction.make_producer(node.bootstrap)
    for number in range(count):
        producer.produce(topic, b"%d" % number, b"key-%d" % (number % 7))
    compaction.roll(producer, topic)


def test_a_topic_deleted_or_made_plain_while_it_is_compacted(tmp_path: Path) -> None:
    """The limit of bytes makes the run last: it is given up, and nothing of it is left."""
    settings = {**compaction.SETTINGS, "log.cleaner.io.max.bytes.per.second": "20000.0"}
    with EmbeddedNode(settings, data_dir=tmp_path) as node:
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        compaction.create(node.bootstrap, "gone", min_cleanable_dirty_ratio="0.0")
        fill(node, "gone", 2000)
        assert node.node is not None
        admin.delete_topics(["gone"])["gone"].result(WAIT_S)
        compaction.create(node.bootstrap, "gone", min_cleanable_dirty_ratio="0.0")
        fill(node, "gone", 20)
        compaction.until_clean(tmp_path, node.bootstrap, "gone")
        found = compaction.read_all(node.bootstrap, "gone")
        assert [value for _, _, value in found[:-1]] == [b"%d" % number for number in range(13, 20)]
        until(lambda: not list(tmp_path.glob("gone-0/*.cleaned")))
        began = time.monotonic()
    assert time.monotonic() < began + WAIT_S  # a stop does not wait for the rate


def test_a_damaged_log_is_told_of_and_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with EmbeddedNode({**compaction.SETTINGS, "log.cleaner.enable": "false"}, data_dir=tmp_path) as node:
        compaction.create(node.bootstrap, "bad", min_cleanable_dirty_ratio="0.0")
        compaction.create(node.bootstrap, "good", min_cleanable_dirty_ratio="0.0")
        fill(node, "bad")
        fill(node, "good")
    path = tmp_path / "bad-0" / f"{0:020d}.log"
    damaged = bytearray(path.read_bytes())
    damaged[61] ^= 0x40  # the length of the first record
    path.write_bytes(damaged)
    with EmbeddedNode(compaction.SETTINGS, data_dir=tmp_path) as node:
        compaction.until_clean(tmp_path, node.bootstrap, "good")
        until(lambda: "bad-0 cannot be compacted" in caplog.text)
        assert len(compaction.read_all(node.bootstrap, "good")) == 8
    assert caplog.text.count("bad-0 cannot be compacted") == 1
    assert path.read_bytes() == damaged

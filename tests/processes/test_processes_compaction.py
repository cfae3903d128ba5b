"""Compaction of a running node: small forms of the check `compaction`, and topics that change during a run."""

from __future__ import annotations

import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from prometheus_client.parser import text_string_to_metric_families
from testkit.kafka_peer import require_kafka
from tools.prove.storage import compaction

from headrace.testing.cluster import EmbeddedNode

RECORDS, KEYS, KILLS = 60_000, 5_000, 2
WAIT_S = 20.0
HTTP = {"headrace.http.listener": "127.0.0.1:0"}


@pytest.mark.java
def test_compaction_under_kills_keeps_the_last_value_of_every_key(tmp_path: Path) -> None:
    require_kafka()
    assert "records became" in compaction.check_compaction(tmp_path, RECORDS, KEYS, KILLS, seed=1)


@pytest.mark.java
def test_compaction_keeps_the_same_records_as_kafka(tmp_path: Path) -> None:
    require_kafka()
    assert "the same" in compaction.same_records_as_kafka(tmp_path, 3000, 400, seed=2, turns=2)


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def scrape(node: EmbeddedNode) -> dict[str, tuple[dict[str, str], float]]:
    """Return the labels and the value of each compaction series in /metrics."""
    assert node.node is not None
    with urllib.request.urlopen(f"http://127.0.0.1:{node.node.http_port}/metrics", timeout=WAIT_S) as response:
        families = list(text_string_to_metric_families(response.read().decode()))
    prefix = "kafka_log_logcleaner"
    assert all(len(one.samples) == 1 for one in families if one.name.startswith(prefix))
    return {
        one.name.removeprefix(prefix): (one.samples[0].labels, one.samples[0].value)
        for one in families
        if one.name.startswith(prefix)
    }


def fill(node: EmbeddedNode, topic: str, count: int = 300) -> None:
    producer = compaction.make_producer(node.bootstrap)
    for number in range(count):
        producer.produce(topic, b"%d" % number, b"key-%d" % (number % 7))
    compaction.roll(producer, topic)


def test_deleting_a_topic_aborts_its_compaction_and_leaves_no_files(tmp_path: Path) -> None:
    """Delete the topic during a run, which the rate limit prolongs: the run is aborted and leaves nothing behind."""
    settings = {**compaction.SETTINGS, "log.cleaner.io.max.bytes.per.second": "20000.0"}
    with EmbeddedNode(settings, data_dir=tmp_path) as node:
        admin = AdminClient({"bootstrap.servers": node.bootstrap})
        compaction.create(node.bootstrap, "gone", min_cleanable_dirty_ratio="0.0")
        fill(node, "gone", 2000)
        assert node.node is not None
        admin.delete_topics(["gone"])["gone"].result(WAIT_S)
        compaction.create(node.bootstrap, "gone", min_cleanable_dirty_ratio="0.0")
        fill(node, "gone", 20)
        compaction.wait_until_clean(tmp_path, node.bootstrap, "gone")
        found = compaction.read_all(node.bootstrap, "gone")
        assert [value for _, _, value in found[:-1]] == [b"%d" % number for number in range(13, 20)]
        until(lambda: not list(tmp_path.glob("gone-0/*.cleaned")))
        began = time.monotonic()
    assert time.monotonic() < began + WAIT_S  # stopping does not wait for the rate limit


def test_a_damaged_log_is_reported_as_uncleanable_and_not_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with EmbeddedNode({**compaction.SETTINGS, "log.cleaner.enable": "false"}, data_dir=tmp_path) as node:
        compaction.create(node.bootstrap, "bad", min_cleanable_dirty_ratio="0.0")
        compaction.create(node.bootstrap, "good", min_cleanable_dirty_ratio="0.0")
        fill(node, "bad")
        fill(node, "good")
    path = tmp_path / "bad-0" / f"{0:020d}.log"
    damaged = bytearray(path.read_bytes())
    damaged[61] ^= 0x40  # the length of the first record
    path.write_bytes(damaged)
    with EmbeddedNode({**compaction.SETTINGS, **HTTP}, data_dir=tmp_path) as node:
        compaction.wait_until_clean(tmp_path, node.bootstrap, "good")
        until(lambda: "bad-0 cannot be compacted" in caplog.text)
        found = scrape(node)
        assert found["manager_uncleanable_partitions_count"] == ({"logDirectory": str(tmp_path)}, 1)
        waiting = sum(file.stat().st_size for file in (tmp_path / "bad-0").glob("*.log"))
        assert found["manager_uncleanable_bytes"] == ({"logDirectory": str(tmp_path)}, waiting)
        assert len(compaction.read_all(node.bootstrap, "good")) == 8
    assert caplog.text.count("bad-0 cannot be compacted") == 1
    assert path.read_bytes() == damaged


def test_a_compaction_run_is_reported_in_metrics(tmp_path: Path) -> None:
    with EmbeddedNode({**compaction.SETTINGS, **HTTP}, data_dir=tmp_path) as node:
        compaction.create(node.bootstrap, "told", min_cleanable_dirty_ratio="1.0")  # prevents compaction
        fill(node, "told", 300)
        until(lambda: scrape(node)["manager_max_dirty_percent"][1] == 100)
        before = scrape(node)
        file = tmp_path / "told-0" / f"{0:020d}.log"
        size = file.stat().st_size
        compaction.alter(node.bootstrap, "told", compaction.DIRTY_RATIO, "0.0")
        compaction.wait_until_clean(tmp_path, node.bootstrap, "told")
        until(lambda: scrape(node)["manager_max_dirty_percent"][1] == 0)
        after = scrape(node)
        size_after = file.stat().st_size
    values = {name: value for name, (_, value) in after.items()}
    assert values.pop("_cleaner_recopy_percent") == pytest.approx(100 * size_after / size) and size_after < size
    slots = int(300 / 0.9) + 2  # slots of a map for that many offsets
    assert values.pop("_max_buffer_utilization_percent") == pytest.approx(100 * 7 / slots)
    assert 0 < values.pop("_max_clean_time_secs") < WAIT_S
    assert 0 <= values.pop("manager_time_since_last_run_ms") < WAIT_S * 1000
    assert values == dict.fromkeys(
        (
            "_max_compaction_delay_secs",
            "manager_max_dirty_percent",
            "manager_uncleanable_bytes",
            "manager_uncleanable_partitions_count",
        ),
        0,
    )
    assert before.keys() == after.keys() and before["_max_clean_time_secs"][1] == 0

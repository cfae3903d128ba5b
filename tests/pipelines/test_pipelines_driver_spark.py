"""A driver with a real Spark: missing topics, failures it recovers from or gives up on, and brokers that restart."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.pipelines.sink_runs import visible
from tests.pipelines.topic_writer import TopicWriter

from headrace.pipelines.definitions.definition import Pipeline
from headrace.pipelines.runner.status import QueryStatus
from headrace.testing.cluster import EmbeddedNode

pytest.importorskip("pyspark", reason="needs the extra spark")

from headrace.pipelines.definitions.loading import load
from headrace.pipelines.runner import Driver, Runs
from headrace.pipelines.runner.control import ask_status, ask_to_stop

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(400)]  # PySpark's own code emits warnings

SEEN_S_MAX = 120.0
ORDERS = """
name: shop
settings: {{kafka.bootstrap.servers: "{bootstrap}"}}
checkpoint: {folder}/checkpoints
trigger: 100 milliseconds
sources:
  orders: {{topic: orders, options: {{startingOffsets: earliest}}}}
steps:
  shouted: {{sql: "SELECT key, upper(cast(value AS string)) AS value FROM orders"}}
sinks:
  loud: {{from: shouted, topic: loud, value: raw}}
  archive: {{from: shouted, parquet: {folder}/archive}}
"""
CLEANING = """
name: cleaning
settings: {{kafka.bootstrap.servers: "{bootstrap}"}}
checkpoint: {folder}/checkpoints
trigger: 100 milliseconds
sources:
  orders: {{topic: orders, options: {{startingOffsets: earliest}}}}
  numbers: {{topic: poison, value: json, schema: "id bigint", options: {{startingOffsets: earliest}}}}
steps:
  cleaned: {{python: "steps.py:clean", inputs: [orders]}}
sinks:
  clean: {{from: cleaned, parquet: {folder}/clean}}
  poisoned: {{from: numbers, parquet: {folder}/poisoned}}
"""
STEPS = """
from pathlib import Path

BROKEN = Path({broken!r})


def clean(orders):
    def look(batches):
        for batch in batches:
            if BROKEN.exists():
                raise ValueError("the reference data are not there")
            yield batch

    return orders.select("value").mapInPandas(look, "value binary")
"""


@contextmanager
def running(pipelines: Sequence[Pipeline], spark: SparkSession, runtime: Path) -> Iterator[tuple[Driver, list[Any]]]:
    driver = Driver(pipelines, spark=spark, runtime=runtime)
    ended: list[list[QueryStatus]] = []
    thread = threading.Thread(target=lambda: ended.append(driver.run()))
    thread.start()
    try:
        yield driver, ended
    finally:
        driver.stop()
        thread.join(SEEN_S_MAX)
        assert not thread.is_alive()


def until(observe: Callable[..., Any], condition: type[bool] | Callable[..., Any]) -> Any:
    deadline = time.monotonic() + SEEN_S_MAX
    while not condition(seen := observe()):
        assert time.monotonic() < deadline, seen
        time.sleep(0.05)
    return seen


def by_name(driver: Driver) -> dict[str, QueryStatus]:
    return {one.name: one for one in driver.status()}


def values(numbers: range) -> list[tuple[bytes, bytes, int]]:
    return [(b"k", f"v{number}".encode(), 1000) for number in numbers]


def test_a_driver_survives_missing_topics_and_broker_restarts_and_resumes(
    spark: SparkSession, headrace_node: EmbeddedNode, tmp_path: Path
) -> None:
    topics = TopicWriter(headrace_node.bootstrap)
    topics.create("loud", 2)
    (tmp_path / "shop.yaml").write_text(ORDERS.format(bootstrap=headrace_node.bootstrap, folder=tmp_path))
    (shop,) = load(tmp_path / "shop.yaml")

    with running([shop], spark, tmp_path) as (driver, ended):
        # The driver waits for a missing topic.
        waiting = until(lambda: by_name(driver), lambda now: all(one.error for one in now.values()))
        assert {one.error for one in waiting.values()} == {"there is no topic orders"}
        topics.create("orders", 2)
        topics.put("orders", 0, values(range(50)))
        topics.put("orders", 1, values(range(50, 80)))
        seen = until(lambda: by_name(driver), lambda now: all(one.rows == 80 for one in now.values()))
        assert all(
            (one.state, one.error, one.lag_records, one.lag_ms) == ("running", "", 0, 0) for one in seen.values()
        )
        assert seen["loud"].restarts >= 1 and seen["loud"].rows_out == 80

        # The broker is restarted between records.
        topics.put("orders", 0, values(range(80, 100)))
        headrace_node.kill()
        headrace_node.start()
        topics.put("orders", 1, values(range(100, 120)))
        seen = until(lambda: by_name(driver), lambda now: all(one.rows >= 120 for one in now.values()))
        assert {one.state for one in seen.values()} == {"running"}

        # Other processes can query its status and stop it.
        (run,) = Runs(tmp_path).all()
        assert {one.name for one in ask_status(run)} == {"loud", "archive"} and run.spark is not None
        with urllib.request.urlopen(f"http://127.0.0.1:{run.port}/metrics") as response:
            assert b'headrace_pipeline_rows_total{pipeline="shop",query="loud"}' in response.read()
        ask_to_stop(run)
        until(lambda: ended, bool)
    assert [one.state for one in ended[0]] == ["stopped", "stopped"] and Runs(tmp_path).all() == []

    # The next run resumes where the first stopped, and ends when it has read everything.
    topics.put("orders", 0, values(range(120, 130)))
    (once,) = load(tmp_path / "shop.yaml", {"trigger": "available-now"})
    statuses = Driver([once], spark=spark, runtime=tmp_path).run()
    assert [(one.name, one.state, one.rows, one.lag_records) for one in statuses] == [
        ("loud", "done", 10, 0),
        ("archive", "done", 10, 0),
    ]
    expected = Counter(f"V{number}" for number in range(130))
    assert visible(headrace_node.bootstrap, "loud") == (expected, False)
    rows = spark.read.parquet(str(tmp_path / "archive")).select("value").collect()
    assert Counter(row.value for row in rows) == expected


def test_recoverable_queries_are_restarted_and_unrecoverable_ones_fail(
    spark: SparkSession, headrace_node: EmbeddedNode, tmp_path: Path
) -> None:
    topics = TopicWriter(headrace_node.bootstrap)
    topics.create("orders", 1)
    topics.create("poison", 1)
    topics.put("orders", 0, values(range(5)))
    topics.put("poison", 0, [(None, json.dumps({"id": 1}).encode(), 1000), (None, b"no json", 1000)])
    broken = tmp_path / "broken"
    broken.write_text("")
    (tmp_path / "steps.py").write_text(STEPS.format(broken=str(broken)))
    (tmp_path / "cleaning.yaml").write_text(CLEANING.format(bootstrap=headrace_node.bootstrap, folder=tmp_path))

    with running(load(tmp_path / "cleaning.yaml"), spark, tmp_path) as (driver, _):
        seen = until(lambda: by_name(driver), lambda now: now["clean"].error and now["poisoned"].state == "failed")
        assert (
            "steps.py:" in seen["clean"].error and "ValueError: the reference data are not there" in seen["clean"].error
        )
        assert "poison-0, offset 1" in seen["poisoned"].error and "onBadRecord" in seen["poisoned"].error
        assert not any(word in one.error for one in seen.values() for word in ("\tat ", "Traceback", "SQLSTATE"))
        broken.unlink()
        seen = until(lambda: by_name(driver), lambda now: now["clean"].rows == 5)
        assert seen["clean"].error == "" and seen["clean"].restarts >= 1
        assert seen["poisoned"].restarts == 0
    rows = spark.read.parquet(str(tmp_path / "clean")).collect()
    assert sorted(bytes(row.value) for row in rows) == [f"v{number}".encode() for number in range(5)]

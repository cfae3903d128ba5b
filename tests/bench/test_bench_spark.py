"""The process of a Spark driver, with a fake Spark: its responses, errors and end. Nothing here runs in Spark."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench.errors import BenchFailed
from bench.line import Options
from bench.lines import SPARK, chapters
from bench.load.data_sets import LARGE, SMALL
from bench.spark.driver import SparkDriver
from bench.spark.lines import KINDS, SparkJob, SparkStart
from bench.spark.program import JOBS, Job, JobResult, _ended_at

FAKE_DRIVER_PROGRAM = """
import json, subprocess, sys, time
child = subprocess.Popen(["sleep", "300"], stdout=subprocess.DEVNULL)
print(json.dumps({"count": 10}), flush=True)
while time.process_time() < 0.1:
    pass  # the system counts CPU time in steps of 0.01 s
for line in sys.stdin:
    job = json.loads(line)
    if job["name"] == "end":
        sys.exit("no more")
    response = {"error": "no such topic"} if job["name"] == "fail" else {"rows": 1, "seconds": 0.5, "all_rows": child.pid}
    print(json.dumps(response), flush=True)
"""


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[SparkDriver]:
    monkeypatch.setattr("bench.spark.driver.PROGRAM", ("-c", FAKE_DRIVER_PROGRAM))
    made = SparkDriver("stand-in")
    made.start(tmp_path)
    yield made
    made.close()


def job(name: str) -> Job:
    return Job(name, "localhost:9092", "topic", 10, 1)


def test_a_driver_runs_jobs_until_it_is_closed_and_can_be_restarted(driver: SparkDriver, tmp_path: Path) -> None:
    assert driver.start_s > 0
    driver.start(tmp_path)  # already running: no effect
    done = driver.run(job("batch"))
    assert done == JobResult(1, 0.5, done.all_rows)
    with pytest.raises(BenchFailed, match=r'fail with format\("stand-in"\): no such topic'):
        driver.run(job("fail"))
    assert driver.run(job("batch")) == done
    assert driver.cpu_seconds() > 0
    driver.close()
    driver.close()
    assert not process_exists(done.all_rows)
    driver.start(tmp_path)
    assert driver.run(job("batch")).all_rows != done.all_rows


def process_exists(process_id: int) -> bool:
    """Return whether the process exists and is not a zombie."""
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return " Z " not in Path(f"/proc/{process_id}/stat").read_text()


def test_a_driver_that_exits_is_reported_with_its_last_output(driver: SparkDriver) -> None:
    with pytest.raises(BenchFailed, match="the Spark driver exited: no more"):
        driver.run(job("end"))


def test_a_stream_batch_ends_with_its_trigger_execution() -> None:
    progress = {"timestamp": "2026-11-16T15:50:00.250Z", "durationMs": {"triggerExecution": 500}}
    assert _ended_at(progress) % 60 == 0.75


def test_every_spark_line_has_a_job_and_a_goal() -> None:
    start, *lines = chapters()[SPARK]
    assert isinstance(start, SparkStart) and start.figures[0].goal_absolute == 10.0
    assert len(lines) == 2 * 4 * len(KINDS)
    for line in lines:
        assert isinstance(line, SparkJob)
        assert line.kind.name in JOBS
        assert line.figures[0].goal == line.kind.goal


@pytest.mark.parametrize(("data", "records"), [(SMALL, 10_000_000), (LARGE, 1_000_000)])
def test_jobs_with_1k_records_use_a_tenth_of_the_records(data: object, records: int) -> None:
    for line in chapters()[SPARK]:
        if isinstance(line, SparkJob) and line.data == data:
            assert line.records(Options()) == records // line.kind.share
            assert line.batch_records(Options()) == records // 10

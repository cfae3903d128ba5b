"""`headrace pipelines …` without Spark: checking and showing files, querying and stopping drivers."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command_line import CommandLine
from tests.pipelines.fake_engine import FakeEngine, make_pipeline
from typer.testing import CliRunner

from headrace.base.processes import Process, this_process
from headrace.cli.app import app
from headrace.cli.pipeline_runs import COLUMNS, ERROR_CHARACTERS_MAX, _size, status_row
from headrace.pipelines.runner import Driver, Run, Runs
from headrace.pipelines.runner.status import QueryStatus

SHOP = """\
name: shop
settings: {kafka.bootstrap.servers: "localhost:9092"}
checkpoint: checkpoints
trigger: 1 second
sources:
  orders: {topic: orders, options: {startingOffsets: earliest}}
steps:
  shouted: {sql: "SELECT key, upper(cast(value AS string)) AS value FROM orders"}
sinks:
  loud: {from: shouted, topic: loud, value: raw}
"""
SEEN_S_MAX = 10.0


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.yaml").write_text(SHOP)
    line = CommandLine()
    return lambda *arguments, **more: line("pipelines", *arguments, **more)


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    """Yield a driver of two pipelines, in this process."""
    engine = FakeEngine()
    made = [make_pipeline(name, folder=tmp_path) for name in ("shop", "stock")]
    driver = Driver(made, engine=engine, runtime=tmp_path / ".headrace")
    thread = threading.Thread(target=driver.run)
    thread.start()
    deadline = time.monotonic() + SEEN_S_MAX
    while {one.state for one in driver.status()} != {"running"}:
        assert time.monotonic() < deadline
        time.sleep(0.005)
    engine.progress(engine.handles["shop.counts"], rows=1234, end=5, latest=9)
    while not driver.status()[0].rows:
        time.sleep(0.005)
    yield driver
    driver.stop()
    thread.join(SEEN_S_MAX)


def test_validate_accepts_a_valid_file_and_plan_shows_it(command: Callable[..., Any]) -> None:
    assert command("validate", "shop.yaml") == "shop: 1 source(s), 1 step(s), 1 sink(s): valid\n"
    assert "topic loud" in command("plan", "shop.yaml", "-b", "there:1") and "there:1" in command(
        "plan", ".", "-b", "there:1"
    )


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("topic: loud", "topik: loud", "shop.yaml:10: "),
        ("from: shouted", "from: shoutd", "shouted"),
        ("name: shop", "nam: shop", "shop.yaml"),
    ],
)
def test_errors_in_a_pipeline_file_are_reported_with_their_location(
    command: Callable[..., Any], tmp_path: Path, before: str, after: str, message: str
) -> None:
    (tmp_path / "shop.yaml").write_text(SHOP.replace(before, after))
    for verb in ("validate", "plan", "run"):
        assert message in command(verb, "shop.yaml", fails=True)


def test_invalid_arguments_are_reported(command: Callable[..., Any], tmp_path: Path) -> None:
    assert "does not exist" in command("run", "nowhere.yaml", fails=True)
    assert "name=value" in command("run", "shop.yaml", "-c", "oops", fails=True)
    assert "name the pipelines" in command("stop", fails=True)
    assert "no pipeline shop is running" in command("stop", "shop", fails=True)
    assert "no pipeline shop is running" in command("status", "shop", fails=True)
    (tmp_path / "again.yaml").write_text(SHOP)
    assert "shop" in command("validate", "shop.yaml", "again.yaml", fails=True), "two pipelines of one name"


def test_status_and_stop_succeed_without_running_pipelines(command: Callable[..., Any]) -> None:
    assert json.loads(command("status", "--json")) == []
    assert command("status").startswith("pipeline  query  state")
    assert command("stop", "--all") == ""


@pytest.mark.parametrize(
    ("arguments", "code"), [(["status"], 0), (["list"], 0), (["stop", "--all"], 0), (["stop", "x"], 1)]
)
def test_commands_that_find_nothing_name_the_runtime_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int
) -> None:
    monkeypatch.chdir(tmp_path)
    for options, folder in (([], tmp_path / ".headrace"), (["--runtime", "elsewhere"], tmp_path / "elsewhere")):
        result = CliRunner().invoke(app, ["pipelines", *arguments, *options])
        message = result.stderr + str(result.exception)
        assert result.exit_code == code and f"in {folder};" in message and "--runtime FOLDER" in message


@pytest.mark.timeout(300)  # starts its own Spark
def test_validating_with_spark_prints_only_the_result(command: Callable[..., Any], tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    done = subprocess.run(
        [sys.executable, "-m", "headrace", "pipelines", "validate", "shop.yaml", "--spark"],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=tmp_path,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "shop: 1 source(s), 1 step(s), 1 sink(s): valid\n"


def test_a_running_driver_is_listed_queried_and_stopped(
    command: Callable[..., Any], driver: Driver, tmp_path: Path
) -> None:
    (one,) = json.loads(command("status", "shop", "--json"))
    assert (one["name"], one["state"], one["rows"], one["lag_records"]) == ("counts", "running", 1234, 4)
    assert [one["pipeline"] for one in json.loads(command("status", "--json"))] == ["shop", "stock"]
    header, row = command("status", "shop").splitlines()
    assert row.split()[:3] == ["shop", "counts", "running"] and "1,234" in row and "lag" in header
    assert "running: shop, stock" in command("status", "nobody", fails=True)
    listed = {one["pipeline"]: one for one in json.loads(command("list", "shop.yaml", "--json"))}
    assert listed["shop"]["state"] == "running" and listed["shop"]["sinks"] == ["loud"]
    assert listed["stock"]["process"] == this_process().pid
    assert "running already" in command("run", "shop.yaml", fails=True)

    assert command("stop", "shop") == "stopped shop\n"
    assert [one.pipeline for one in Runs(tmp_path / ".headrace").all()] == ["stock"]
    assert command("stop", "--all") == "stopped stock\n"


def test_a_killed_driver_is_shown_as_gone_and_removed_by_stop(command: Callable[..., Any], tmp_path: Path) -> None:
    runs = Runs(tmp_path / ".headrace")
    runs.claim(Run(pipeline="shop", driver=Process(2**22 + 7, "long ago"), origin="shop.yaml"))
    (one,) = json.loads(command("status", "--json"))
    assert one["state"] == "gone" and "run the pipeline again" in one["error"]
    assert "gone" in command("list")
    assert command("stop", "shop") == "stopped shop\n"
    assert runs.all() == []


def test_an_unresponsive_driver_is_shown_as_unresponsive(command: Callable[..., Any], tmp_path: Path) -> None:
    Runs(tmp_path / ".headrace").claim(Run(pipeline="shop", driver=this_process(), port=1))
    (one,) = json.loads(command("status", "--json"))
    assert one["state"] == "unresponsive" and "does not respond" in one["error"]


def test_status_rows_are_formatted_for_the_table() -> None:
    status = QueryStatus(
        name="counts",
        pipeline="shop",
        state="waiting",
        rows_per_s=12345.6,
        lag_ms=90_000,
        state_bytes=5 << 20,
        dead_letters=1234,
        error="line one\nline two " + "x" * 400,
    )
    row: list[Any] = status_row(status)
    assert len(row) == len(COLUMNS)
    assert row[3:8] == ["12,346", None, "1 min 30 s", "0", "5.0 MiB"]
    assert row[COLUMNS.index("dead letters")] == "1,234"
    assert row[-1].startswith("line one line two") and len(row[-1]) == ERROR_CHARACTERS_MAX
    assert [_size(count) for count in (0, 1023, 1024, 3 << 30)] == ["0 B", "1023 B", "1.0 KiB", "3.0 GiB"]

"""The main job with a real node and a real generator; Spark's part is faked."""

from __future__ import annotations

import io
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace.base.errors import ConfigError
from headrace.cli.commands.demo import app
from headrace.demo import main as job
from headrace.demo.display.screens import Lines
from headrace.demo.display.state import state_of
from headrace.demo.folders import Folders
from headrace.demo.nodes import free_port_from
from headrace.demo.processes import Child
from headrace.demo.shop.layout import Layout
from headrace.demo.supervisor import GENERATOR, NODE, PIPELINES
from headrace.testing.processes import LOOPBACK, free_port

FAKE_PIPELINES = Path(__file__).with_name("fake_pipelines.py")


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    folders = Folders(tmp_path / "work", tmp_path / ".headrace")
    folders.make()
    return folders


@pytest.fixture
def run_to_end(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Any]]:
    """Return a function that runs the job once and calls `turned` repeatedly meanwhile."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    def run_to_end(
        events: int | None = None,
        rate: float = 0.0,
        fault: str = "",
        on_turn: Callable[..., Any] = lambda run: None,
        brokers: int = 1,
    ) -> tuple[int, str]:
        out = io.StringIO()
        of_run = folders._replace(brokers=brokers)

        class Run(job.Run):
            def _children(self) -> list[Child]:
                children = super()._children()
                command = [sys.executable, str(FAKE_PIPELINES), str(folders.work), self._bootstrap, fault]
                return [*children[:-1], Child(PIPELINES, command, folders.log(PIPELINES), {})]

            def _turn(self) -> None:
                super()._turn()
                on_turn(self)

        with folders.locked():
            code = Run(job.Options(of_run, events, rate, free_port(), True), Lines(out)).run_to_end()
        return code, out.getvalue()

    yield run_to_end
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_bounded_run_ends_and_verifies_its_results(run_to_end: Callable[..., Any], folders: Folders) -> None:
    code, printed = run_to_end(events=3_000)
    assert code == 0, printed
    assert printed.count("the node serves on localhost:") == 1 and "metrics on http://localhost:" in printed
    assert "3 000 events: 2 700 clicks and 300 orders, each in its topic once" in printed
    assert printed.count("right, each once") == 6 and "events in = events out" in printed
    assert "stopped cleanly" in folders.log(NODE).read_text()
    code, printed = run_to_end(events=2_000)
    assert (
        code == 0 and "all of 3 000 events had been processed before" in printed and "events in = events out" in printed
    )


@pytest.mark.parametrize(("fault", "expected"), [("lost", "1 lost"), ("doubled", "1 twice")])
def test_lost_and_duplicate_results_fail_the_run(run_to_end: Callable[..., Any], fault: str, expected: str) -> None:
    code, printed = run_to_end(events=500, fault=fault)
    assert code == 1
    assert printed.count(expected) == 2 and "do NOT match the events" in printed


def test_an_interrupted_run_stops_cleanly_and_can_be_resumed(run_to_end: Callable[..., Any], folders: Folders) -> None:
    def stop(run: Any) -> None:
        seen = run._director.seen
        if seen is not None and seen.facts.layout.frontier(seen.facts.ends).low > 100:
            run._signalled(signal.SIGINT, None)

    code, printed = run_to_end(rate=2_000.0, on_turn=stop)
    assert code == 0 and "resumes from here" in printed
    for name, last in ((NODE, "stopped cleanly"), (GENERATOR, "events are written")):
        assert last in folders.log(name).read_text()
    assert not (folders.shop / "processes.json").read_text().strip("{}")
    code, printed = run_to_end(events=1)
    assert code == 0 and "events in = events out" in printed


def test_processes_killed_during_a_run_are_restarted(run_to_end: Callable[..., Any]) -> None:
    killed: list[str] = []

    def kill(run: Any) -> None:
        for name in (NODE, GENERATOR, PIPELINES):
            child = run._supervisor[name]
            if name not in killed and child.is_running and run._supervisor[PIPELINES].is_running:
                os.kill(child.pid, signal.SIGKILL)
                killed.append(name)
                return

    code, printed = run_to_end(events=20_000, rate=8_000.0, on_turn=kill)
    assert code == 0, printed
    assert printed.count("was killed, and is started again") == 3 and "events in = events out" in printed


def test_a_run_on_three_brokers_shows_them_and_survives_the_kill_of_one(
    run_to_end: Callable[..., Any], folders: Folders
) -> None:
    shown: set[str] = set()
    killed: list[int] = []

    def kill(run: Any) -> None:
        state = state_of("", 0.0, run._director, run._supervisor, run._nodes, folders)
        shown.update(part.detail for part in state.parts if part.name == "node 1")
        child = run._supervisor["node 2"]
        if not killed and run._supervisor[PIPELINES].is_running:
            killed.append(child.pid)
            os.kill(child.pid, signal.SIGKILL)

    code, printed = run_to_end(events=4_000, rate=4_000.0, on_turn=kill, brokers=3)
    assert code == 0, printed
    assert "3 brokers serve on localhost:" in printed and "events in = events out" in printed
    assert f"node 2 (process {killed[0]}) was killed, and is started again" in printed
    assert any(re.fullmatch(r"localhost:\d+ · leads \d+ of 12 partitions, 12 in sync", one) for one in shown), shown
    for number in (1, 2, 3):
        assert "stopped cleanly" in folders.log(f"node {number}").read_text()


def test_a_node_that_cannot_start_is_reported_with_its_last_output(
    run_to_end: Callable[..., Any], folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "headrace.demo.shop.requests.CALL_S_MAX", 1.0
    )  # limits how long the director's thread waits for a node that never starts
    folders.data.write_text("not a folder")
    code, printed = run_to_end(events=10)
    assert code == 1 and "the node has ended with code 1 again and again" in printed and "work/data" in printed


def test_ports_in_use_are_skipped() -> None:
    import socket

    with socket.socket() as other:
        port = free_port()
        other.bind((LOOPBACK, port))
        other.listen()
        assert free_port_from(port) > port


@pytest.mark.parametrize("arguments", [["--events", "0"], ["--rate", "-1"], ["--events", "many"]])
def test_invalid_arguments_are_refused(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2 and "Invalid value" in result.output


@pytest.mark.parametrize(
    ("arguments", "rate"), [(["--events", "5"], 0.0), ([], job.RATE), (["--events", "5", "--rate", "7"], 7.0)]
)
def test_a_bounded_run_has_no_rate_limit_unless_one_is_given(
    arguments: list[str], rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[job.Options] = []

    def run(options: job.Options) -> int:
        given.append(options)
        return 0

    monkeypatch.setattr("headrace.cli.commands.demo.run", run)
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert given[0].rate == rate


def test_a_run_on_a_cluster_has_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[job.Options] = []

    def run(options: job.Options) -> int:
        given.append(options)
        return 0

    monkeypatch.setattr("headrace.cli.commands.demo.run", run)
    for arguments in ([], ["--brokers", "3"]):
        assert CliRunner().invoke(app, ["--folder", "work", *arguments]).exit_code == 0
    one, several = (options.folders for options in given)
    assert (one.work.name, one.brokers, one.data_of(1)) == ("work", 1, one.work / "data")
    assert (several.work, several.brokers) == (one.work / "brokers-3", 3)
    assert several.data_of(2) == several.work / "data" / "node-2"


def test_the_demo_without_spark_explains_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.cli.commands.demo.find_spec", lambda name: None)
    result = CliRunner().invoke(app, [])
    assert isinstance(result.exception, ConfigError) and "headrace[spark]" in str(result.exception)


def test_an_empty_layout_has_its_frontier_at_zero() -> None:
    assert Layout([]).frontier(Layout([]).ends(0)) == (0, 0)

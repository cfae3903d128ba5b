"""`headrace cluster …` on real processes; the steps of a cluster's life are one test, because a cluster takes seconds to start.

`start` runs in a process of its own, as the nodes must not be children of the tests.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.command_line import CommandLine
from typer.testing import CliRunner

from headrace.base.processes import is_alive, process_of
from headrace.cli.app import app
from headrace.cli.commands import cluster as commands
from headrace.local_cluster.folder import ClusterFolder
from headrace.local_cluster.layout import LOOPBACK, Layout, plan_nodes
from headrace.testing.processes import free_port

RUN_S_MAX = 110.0


def free_first_port() -> int:
    """Return a first port whose ports for three combined nodes and a fourth broker are free."""
    while True:
        port = free_port()
        try:
            plans = plan_nodes(4, None, port)
            for one in (one for plan in plans for one in plan.ports):
                with socket.socket() as probe:
                    probe.bind((LOOPBACK, one))
        except OSError:
            continue
        return port


class LocalCommands:
    """Runs `headrace cluster …` on one folder."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port

    @property
    def bootstrap(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def __call__(self, *arguments: Any, fails: bool = False, stdin: str | None = None) -> str:
        return CommandLine()("cluster", *arguments, "--folder", self.folder, fails=fails, stdin=stdin)

    def start(self, *options: Any) -> str:
        command = [sys.executable, "-m", "headrace", "cluster", "start", "--folder", str(self.folder)]
        done = subprocess.run(
            [*command, *map(str, options)], capture_output=True, text=True, timeout=RUN_S_MAX, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self("status", "--json"))
        return found

    def states(self) -> list[str]:
        return [node["state"] for node in self.status()["nodes"]]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCommands]:
    commands = LocalCommands(tmp_path / "cluster", free_first_port())
    try:
        commands.start("--brokers", 3, "--port", commands.port, "-c", "num.partitions=2")
        yield commands
    finally:
        if ClusterFolder(commands.folder).is_cluster:
            commands("delete", "--yes")


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + RUN_S_MAX
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def a_started_cluster_serves_and_its_status_shows_leaders_and_replicas(cluster: LocalCommands) -> None:
    headrace = CommandLine(cluster.bootstrap)
    headrace("produce", "kept", stdin="first\n")
    until(lambda: cluster.status()["under_replicated_partitions"] == 0)
    found = cluster.status()
    assert found["partitions"] == 2, "the setting of the command line applies"
    nodes = found["nodes"]
    assert [node["id"] for node in nodes] == [1, 2, 3]
    assert {node["state"] for node in nodes} == {"running"} and {node["in_sync"] for node in nodes} == {2}
    assert sum(node["leaders"] for node in nodes) == 2 and sum(node["is_quorum_leader"] for node in nodes) == 1
    assert all(node["memory_bytes"] > 10_000_000 and node["cpu_seconds"] > 0 for node in nodes)
    table = cluster("status")
    assert table.count("broker+controller") == 3 and "2 partitions, 0 under-replicated, 0 without leader" in table


def the_nodes_run_in_sessions_of_their_own(cluster: LocalCommands) -> None:
    pids = [node["pid"] for node in cluster.status()["nodes"]]
    assert [os.getsid(pid) for pid in pids] == pids


def a_killed_node_is_started_again_by_start_with_its_data(cluster: LocalCommands) -> None:
    before = [node["pid"] for node in cluster.status()["nodes"]]
    assert "`headrace cluster start --folder" in cluster("kill", 2)
    assert cluster.states() == ["running", "stopped", "running"]
    assert "node 2 does not run" in cluster("kill", 2, fails=True)
    printed = cluster.start()
    assert "node 2 (broker and controller) serves on" in printed and "node 1 (" not in printed
    assert f"bootstrap.servers={cluster.bootstrap}," in printed
    after = [node["pid"] for node in cluster.status()["nodes"]]
    assert (after[0], after[2]) == (before[0], before[2]) and after[1] != before[1]


def a_paused_node_is_shown_as_paused_until_it_is_resumed(cluster: LocalCommands) -> None:
    assert "is paused" in cluster("pause", 3)
    assert cluster.states() == ["running", "running", "paused"]
    assert "node 3 runs" in cluster("resume", 3)
    assert cluster.states() == ["running"] * 3


def commands_for_an_unknown_node_or_another_layout_are_refused(cluster: LocalCommands) -> None:
    for command in ("kill", "pause", "resume", "stop"):
        assert "no node 9 in this cluster; its nodes are 1, 2, 3" in cluster(command, 9, fails=True)
    for options, expected in (
        (("--brokers", 2), "the cluster has 3 brokers"),
        (("--controllers", 3), "no separate controllers"),
        (("--port", 1000), "cannot be changed"),
        (("-c", "node.id=7"), "follows from the layout"),
        (("-c", "num.partitions=many"), "num.partitions"),
        (("-c", "num.partitions"), "expected name=value"),
    ):
        assert expected in cluster("start", *options, fails=True)


def a_broker_is_added_by_starting_with_a_larger_number(cluster: LocalCommands) -> None:
    printed = cluster.start("--brokers", 4, "-c", "log.retention.hours=1")
    assert "node 4 (broker) serves on" in printed
    assert "Nodes 1, 2, 3 ran already and keep their settings until they are started again" in printed
    assert cluster.states() == ["running"] * 4
    assert "node 4 is stopped" in cluster("stop", 4)
    assert cluster.states() == ["running"] * 3 + ["stopped"]


def a_stopped_cluster_keeps_its_data_and_stops_cleanly(cluster: LocalCommands) -> None:
    assert cluster("stop").count("is stopped") == 3
    assert cluster.states() == ["stopped"] * 4
    assert "no node runs" in cluster("stop")
    assert cluster.status()["problem"] == "no broker runs" and cluster.status()["partitions"] is None
    for node_id in (1, 2, 3):
        assert (
            ClusterFolder(cluster.folder).node(node_id).log.read_text().rstrip().endswith("stopped cleanly (headrace)")
        )
    cluster.start()
    assert CommandLine(cluster.bootstrap)("consume", "kept", "--exit") == "first\n"


def a_deleted_cluster_is_gone_with_its_processes(cluster: LocalCommands) -> None:
    pids = [node["pid"] for node in cluster.status()["nodes"]]
    processes = [process_of(pid) for pid in pids]
    assert cluster.folder.exists()
    result = CliRunner().invoke(app, ["cluster", "delete", "--folder", str(cluster.folder)], input="n\n")
    assert result.exit_code == 1 and cluster.folder.exists(), "no was answered"
    cluster("delete", stdin="y\n")
    assert not cluster.folder.exists() and not any(map(is_alive, processes))
    assert "no cluster in" in cluster("status", fails=True)


STEPS = (
    a_started_cluster_serves_and_its_status_shows_leaders_and_replicas,
    the_nodes_run_in_sessions_of_their_own,
    a_killed_node_is_started_again_by_start_with_its_data,
    a_paused_node_is_shown_as_paused_until_it_is_resumed,
    commands_for_an_unknown_node_or_another_layout_are_refused,
    a_broker_is_added_by_starting_with_a_larger_number,
    a_stopped_cluster_keeps_its_data_and_stops_cleanly,
    a_deleted_cluster_is_gone_with_its_processes,
)


def test_a_cluster_is_started_watched_killed_paused_grown_stopped_and_deleted(cluster: LocalCommands) -> None:
    for step in STEPS:
        step(cluster)


# --- refusals without a running cluster


def test_a_port_in_use_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    port = free_first_port()
    with socket.socket() as other:
        other.bind((LOOPBACK, port + 2))
        other.listen()
        message = CommandLine()("cluster", "start", "--port", port, "--folder", tmp_path / "cluster", fails=True)
    assert f"port {port + 2}, which node 2 needs, cannot be used" in message
    assert not ClusterFolder(tmp_path / "cluster").is_cluster


def test_a_folder_of_another_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("text")
    assert "another program" in CommandLine()("cluster", "start", "--folder", tmp_path, fails=True)
    for command in ("status", "stop", "delete"):
        assert "no cluster in" in CommandLine()("cluster", command, "--folder", tmp_path, fails=True)
    assert [one.name for one in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_node_that_does_not_react_to_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.local_cluster.control.STOP_S_MAX", 0.5)
    folder = ClusterFolder(tmp_path)
    layout = Layout(cluster_id="4L6g3nShT-eMCtK--X86sw", first_port=9092, nodes=plan_nodes(1, None, 9092), settings={})
    folder.save(layout)
    folder.node(1).path.mkdir()
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('here', flush=True); time.sleep(100)"
    )
    with subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"here\n"
        folder.node(1).process.write_text(json.dumps(process_of(process.pid)))
        printed = CommandLine()("cluster", "stop", "--folder", tmp_path)
        assert process.wait(RUN_S_MAX) == -signal.SIGKILL
    assert "node 1 did not stop within 0 s and is killed" in printed


def test_the_next_steps_name_the_address_and_folder_unless_they_are_the_usual_ones() -> None:
    usual = Layout(cluster_id="x", first_port=9092, nodes=plan_nodes(3, None, 9092), settings={})
    other = Layout(cluster_id="x", first_port=19_092, nodes=plan_nodes(3, None, 19_092), settings={})
    assert "headrace consume orders --exit\n" in commands._next_steps(usual, commands.FOLDER)
    shown = commands._next_steps(other, Path("mine"))
    assert "headrace consume orders --exit -b 127.0.0.1:19092\n" in shown and "cluster stop --folder mine" in shown

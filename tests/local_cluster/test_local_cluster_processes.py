"""Background processes of nodes: found again by later commands, and never confused with others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.base.processes import Process, is_alive, process_of, send_signal, this_process, usage_of
from headrace.local_cluster.control import stop_stages
from headrace.local_cluster.folder import ClusterFolder, NodeFolder
from headrace.local_cluster.layout import plan_nodes
from headrace.local_cluster.node_process import BackgroundNode, NodeFailed, NodeState

WAIT_S_MAX = 30.0


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def other() -> Iterator[subprocess.Popen[Any]]:
    """Yield another process, which does nothing."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.stdin.close()
    process.wait()


@pytest.fixture
def folder(tmp_path: Path) -> NodeFolder:
    folder = ClusterFolder(tmp_path).node(1)
    folder.path.mkdir()
    return folder


@pytest.fixture
def node(folder: NodeFolder) -> BackgroundNode:
    return BackgroundNode(plan_nodes(1, None, 9092)[0], folder)


def test_a_node_is_found_by_the_pid_and_start_time_in_its_file(
    node: BackgroundNode, folder: NodeFolder, other: subprocess.Popen[Any]
) -> None:
    assert node.state() is NodeState.STOPPED and node.process() is None
    folder.process.write_text(json.dumps(process_of(other.pid)))
    assert node.is_running and node.process().pid == other.pid
    until(lambda: node.usage().memory_bytes > 1_000_000)
    assert node.pause()
    until(lambda: node.state() is NodeState.PAUSED)
    assert node.is_running, "a paused process exists"
    assert node.resume()
    until(lambda: node.state() is NodeState.RUNNING)
    assert node.kill()
    until(lambda: node.state() is NodeState.STOPPED)
    assert not node.kill() and not node.pause() and not node.resume()


def test_a_process_that_got_the_pid_of_a_dead_node_is_never_signalled(
    node: BackgroundNode, folder: NodeFolder, other: subprocess.Popen[Any]
) -> None:
    reused = Process(other.pid, "another start")
    folder.process.write_text(json.dumps(reused))
    assert not node.is_running
    assert not node.kill()
    node.terminate()
    assert not send_signal(reused, signal.SIGKILL) and usage_of(reused) is None
    assert is_alive(process_of(other.pid)) and other.poll() is None


@pytest.mark.parametrize("text", ["", "{}", "[1]", '["1", 2]', '[-5, "x"]', '[99999999999999999999, "x"]'])
def test_a_damaged_process_file_means_that_the_node_does_not_run(
    node: BackgroundNode, folder: NodeFolder, text: str
) -> None:
    folder.process.write_text(text)
    assert node.process() is None and not node.kill()


def test_a_node_that_cannot_start_is_reported_with_the_end_of_its_log(node: BackgroundNode, folder: NodeFolder) -> None:
    folder.log.write_text("headrace node 1 of cluster x serves on an earlier day\n")
    folder.properties.write_text("node.id=no-number\n")
    node.launch(os.environ)
    with pytest.raises(
        NodeFailed, match=r"(?s)node 1 ended with code 1 instead of serving.*node\.log:.*node\.id"
    ) as failed:
        until(node.is_serving)
    assert "earlier day" not in str(failed.value)


def test_an_announcement_is_found_after_a_long_log(node: BackgroundNode, folder: NodeFolder) -> None:
    line = b"x" * 1000 + b"\n"
    folder.log.write_bytes(line * 300 + b"headrace node 1 of cluster x serves ")
    assert not node.is_serving()
    with folder.log.open("ab") as log:
        log.write(b"on 127.0.0.1:9092\n")
    assert node.is_serving()


def test_signals_reach_a_process_only_while_it_lives(other: subprocess.Popen[Any]) -> None:
    process = process_of(other.pid)
    assert send_signal(process, signal.SIGKILL)
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    assert not send_signal(process, signal.SIGKILL)
    assert not send_signal(Process(2**22 + 7, "never"), signal.SIGKILL)
    assert usage_of(this_process()).cpu_s > 0 and usage_of(process) is None


def test_brokers_are_stopped_before_the_controllers_that_they_need(tmp_path: Path) -> None:
    def stages(brokers: int, controllers: int | None) -> list[list[int]]:
        nodes = [BackgroundNode(plan, NodeFolder(tmp_path)) for plan in plan_nodes(brokers, controllers, 9092)]
        return [[node.plan.id for node in stage] for stage in stop_stages(nodes)]

    assert stages(2, 3) == [[1, 2], [3, 4, 5]]
    assert stages(5, None) == [[4, 5], [1, 2, 3]]
    assert stages(3, None) == [[1, 2, 3]], "together: each controller serves until its own broker has left"

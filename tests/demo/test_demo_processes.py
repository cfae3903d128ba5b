"""Processes of a run: restarted when they are killed, stopped in order, and tied to their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.demo.memory import SessionMemory, session_bytes
from headrace.demo.processes import AGAIN_S, EARLY_DEATHS_MAX, EARLY_S, Child, Lives, Register
from headrace.demo.supervisor import GENERATOR, NODE, PIPELINES, GivenUp, Supervisor, node_name, subject

# Not signal.pause(): it would miss a signal that arrives just before it.
WAITS = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("here", flush=True)
while True:
    time.sleep(0.05)
"""
ENDED_S_MAX = 30.0


def until(condition: Callable[..., Any]) -> None:
    deadline = time.monotonic() + ENDED_S_MAX
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    made: list[Child] = []

    def make(name: str = NODE, code: str = WAITS) -> Child:
        child = Child(name, [sys.executable, "-c", code], tmp_path / "logs" / f"{name}.log", {})
        made.append(child)
        return child

    yield make
    for child in made:
        child.close()


class TimedSupervisor(Supervisor):
    """A supervisor whose clock the test sets."""

    now = 1000.0


@pytest.fixture
def supervisor(make: Callable[..., Any], tmp_path: Path) -> TimedSupervisor:
    children = [make(NODE), make(GENERATOR), make(PIPELINES)]
    timed = TimedSupervisor(children, Register(tmp_path / "processes"), lambda: timed.now)
    return timed


def test_a_killed_process_is_restarted_after_a_delay(supervisor: TimedSupervisor) -> None:
    supervisor.start(NODE)
    first = supervisor[NODE].pid
    os.kill(first, signal.SIGKILL)
    until(lambda: not supervisor[NODE].is_running)
    supervisor.look()
    assert not supervisor[NODE].is_running, "not at once"
    supervisor.now += AGAIN_S
    supervisor.look()
    assert supervisor[NODE].is_running and supervisor[NODE].pid != first
    assert supervisor.notices == [f"the node (process {first}) was killed, and is started again"]


def test_a_process_that_exits_cleanly_is_not_restarted(supervisor: TimedSupervisor) -> None:
    for name in (GENERATOR, PIPELINES):
        supervisor.start(name)
        until(lambda name=name: supervisor[name].last_words() == ["here"])
        supervisor[name].end()
        until(lambda name=name: not supervisor[name].is_running)
    supervisor.look()
    supervisor.now += 10 * AGAIN_S
    supervisor.look()
    assert not supervisor[GENERATOR].is_running and not supervisor[PIPELINES].is_running
    assert [one for one in supervisor.notices if "stopped from outside" in one] == supervisor.notices
    assert len(supervisor.notices) == 1


def test_a_process_that_keeps_failing_is_given_up_with_its_last_output(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    children = [make(NODE, "import sys; print('no room', flush=True); sys.exit(3)"), make(GENERATOR), make(PIPELINES)]
    now = 0.0
    supervisor = Supervisor(children, Register(tmp_path / "processes"), lambda: now)
    supervisor.start(NODE)
    with pytest.raises(GivenUp, match="the node has ended with code 3") as given_up:
        for _ in range(10):
            until(lambda: not supervisor[NODE].is_running)
            supervisor.look()
            now += AGAIN_S
            supervisor.look()
    assert given_up.value.last_words == ["no room"] * EARLY_DEATHS_MAX


def test_only_repeated_early_failures_stop_the_restarts() -> None:
    lives = Lives()
    for turn in range(20):  # kills do not count
        lives.started(float(turn))
        assert lives.ended(-signal.SIGKILL, float(turn)) == turn + AGAIN_S
    for _ in range(20):  # nor do late deaths
        lives.started(100.0)
        assert lives.ended(1, 100.0 + EARLY_S) is not None
    assert [lives.ended(1, 101.0) is None for _ in range(EARLY_DEATHS_MAX)] == [False] * (EARLY_DEATHS_MAX - 1) + [True]


def test_processes_are_stopped_in_dependency_order(supervisor: TimedSupervisor) -> None:
    for name in (NODE, GENERATOR, PIPELINES):
        supervisor.start(name)
        until(lambda name=name: supervisor[name].last_words() == ["here"])
    seen: list[tuple[bool, ...]] = []

    def look() -> None:
        seen.append(tuple(supervisor[name].is_running for name in (GENERATOR, PIPELINES, NODE)))

    supervisor.end_all(look)
    assert {supervisor[name].code for name in (NODE, GENERATOR, PIPELINES)} == {0}
    assert sorted(seen, reverse=True) == seen, "nobody ends before those who need him"


def test_several_nodes_are_named_by_number_and_stopped_together_at_the_end(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    names = [node_name(number, 2) for number in (1, 2)]
    assert names == ["node 1", "node 2"] and node_name(1, 1) == NODE
    supervisor = Supervisor([make(name) for name in (*names, GENERATOR, PIPELINES)], Register(tmp_path / "processes"))
    assert supervisor.nodes == names
    for name in (*names, GENERATOR, PIPELINES):
        supervisor.start(name)
        until(lambda name=name: supervisor[name].last_words() == ["here"])
    supervisor.end_all(lambda: None)
    assert {supervisor[name].code for name in names} == {0} and supervisor.notices == []
    assert [subject(name) for name in (names[1], NODE)] == ["node 2", "the node"]


def test_closing_a_child_kills_its_process_group(make: Callable[..., Any]) -> None:
    child = make(
        NODE, "import subprocess, sys; subprocess.Popen(['sleep', '1000']); print('here', flush=True); input()"
    )
    child.start(0.0)
    until(lambda: child.last_words() == ["here"])
    child.close()
    assert child.code == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        until(lambda: os.killpg(child.pid, 0) is not None)  # type: ignore[func-returns-value]


def test_processes_left_by_a_killed_run_are_awaited(make: Callable[..., Any], tmp_path: Path) -> None:
    register = Register(tmp_path / "processes")
    assert register.left() == {}
    child = make()
    child.start(0.0)
    register.write([child, make(GENERATOR)])
    assert {name: one.pid for name, one in register.left().items()} == {NODE: child.pid}
    messages: list[str] = []
    register.clear(messages.append, lambda _: child.close())
    assert register.left() == {} and messages == ["stopping the processes of a killed run"]


def test_leftover_processes_that_do_not_exit_are_killed(make: Callable[..., Any], tmp_path: Path) -> None:
    register = Register(tmp_path / "processes")
    child = make()
    child.start(0.0)
    register.write([child])
    register.clear(lambda _: None, lambda _: None)
    until(lambda: not child.is_running)
    assert child.code == -signal.SIGKILL


def test_an_unreadable_register_counts_as_empty(tmp_path: Path) -> None:
    (tmp_path / "processes").write_text("[[")
    assert Register(tmp_path / "processes").left() == {}


def test_a_process_exits_when_its_parent_dies() -> None:
    """However the parent dies, its end of the pipe is closed."""
    code = f"from headrace.demo.parent_process import end_with_parent; end_with_parent(); {WAITS}"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"here\n"
    process.stdin.close()
    assert process.wait(ENDED_S_MAX) in (0, -signal.SIGTERM)
    process.stdout.close()


LARGE = "import os, sys; os.setpgid(0, 0); large = bytearray(80_000_000); print('large', flush=True); sys.stdin.read()"
PARENT_OF_LARGE_PROGRAM = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {LARGE!r}], stdin=subprocess.PIPE).wait()
"""


def test_memory_includes_that_of_child_processes(make: Callable[..., Any], tmp_path: Path) -> None:
    child = make(PIPELINES, PARENT_OF_LARGE_PROGRAM)
    assert child.memory_bytes() is None
    child.start(0.0)
    until(lambda: child.last_words() == ["large"])
    assert session_bytes(child.pid) > 80_000_000
    assert child.memory_bytes() > 80_000_000


def test_session_memory_is_summed_from_proc_and_cached(tmp_path: Path) -> None:
    now = [0.0]
    memory = SessionMemory(lambda: now[0])
    first = memory.of(os.getsid(0))
    assert first is None or first > 1_000_000
    assert memory.of(os.getsid(0)) == first
    for name, session, pages in (("7", 7, 3), ("8 (odd) name", 7, 4), ("9", 9, 100)):
        folder = tmp_path / name.split()[0]
        folder.mkdir()
        fields = ["S", "1", "1", str(session), *["0"] * 17, str(pages), "0"]
        (folder / "stat").write_text(f"{folder.name} ({name}) {' '.join(fields)}\n")
    (tmp_path / "7" / "smaps_rollup").write_text("00400000-7fff rollup\nRss: 12 kB\nPss:                   5 kB\n")
    (tmp_path / "10").mkdir()  # has ended meanwhile
    (tmp_path / "uptime").write_text("1")
    assert session_bytes(7, tmp_path) == 5 * 1024 + 4 * os.sysconf("SC_PAGE_SIZE")
    assert session_bytes(9, tmp_path) == 100 * os.sysconf("SC_PAGE_SIZE")
    assert session_bytes(11, tmp_path) is None and session_bytes(7, tmp_path / "none") is None

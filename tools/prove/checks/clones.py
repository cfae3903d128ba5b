"""The commands of the README in a fresh clone."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tools.prove.clients import CLIENTS, WriteOptions
from tools.prove.clients.matrix import Exchange
from tools.prove.commands import run
from tools.prove.registry import ROOT, NotRun, check, print_progress

TEST_S_MAX = 900.0
BUSY_TEST_S_MAX = 2400.0
TEST_RUNS, BUSY_RUNS = 6, 4
CLONE_S_MAX = 120.0
RUN_S_MAX = 600.0
FIRST_RESULTS_S_MAX = 90.0
END_S_MAX = 600.0
STOP_S_MAX = 60.0
PORT = 9092
SHOWN_CHARACTERS = 2000
RESULT_TOPIC = "shop-enriched-orders"
SERVES = re.compile(" serves on ")
SHOP_STARTS = re.compile("the node starts")
FIRST_RESULTS = re.compile("[1-9][0-9 ]* enriched orders")
STOPPED = "`make run` resumes from here"
RIGHT = re.compile("events in = events out")


@contextlib.contextmanager
def fresh_clone() -> Iterator[Path]:
    """Yield a clone of the last commit; uncommitted changes are not in it."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        raise NotRun("this is not a git checkout")
    if shutil.which("make") is None:
        raise NotRun("make is not on the path")
    with tempfile.TemporaryDirectory(prefix="headrace-clone-") as directory:
        clone = Path(directory, "headrace")
        run(["git", "clone", "-q", "--no-hardlinks", str(ROOT), str(clone)], timeout_s=CLONE_S_MAX)
        yield clone


@check("tests-in-a-fresh-clone", "make test passes in a fresh clone in under 15 minutes")
def tests_in_a_fresh_clone() -> str:
    with fresh_clone() as clone:
        started = time.monotonic()
        done = run(["make", "test"], cwd=clone, timeout_s=TEST_S_MAX, environment=_clean())
        seconds = time.monotonic() - started
    summary = _summary(done.stdout)
    return f"{seconds:.0f} s in total; {summary}"


@check(
    "tests-again-and-again",
    "make test passes six times in a row in a fresh clone, each time in another random order, four times with one "
    "core busy",
)
def tests_again_and_again() -> str:
    figures = []
    with fresh_clone() as clone:
        for number in range(TEST_RUNS):
            is_busy = number >= TEST_RUNS - BUSY_RUNS
            started = time.monotonic()
            with busy_core() if is_busy else contextlib.nullcontext():
                done = run(["make", "test"], cwd=clone, timeout_s=BUSY_TEST_S_MAX, environment=_clean())
            summary = _summary(done.stdout)
            figures.append(f"{time.monotonic() - started:.0f} s{' busy' if is_busy else ''}")
            print_progress(f"run {number + 1}: {figures[-1]}; {summary}")
    return f"{TEST_RUNS} of {TEST_RUNS} passed: {', '.join(figures)}"


def _summary(output: str) -> str:
    """Return pytest's line with the counts; make may print more after it."""
    return next((line for line in reversed(output.splitlines()) if " passed" in line), "no summary")


@contextlib.contextmanager
def busy_core() -> Iterator[None]:
    """Keep one core of the machine busy."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


@check("serve-in-a-fresh-clone", "make serve in a fresh clone serves on localhost:9092 and stops cleanly on SIGTERM")
def serve_in_a_fresh_clone() -> str:
    _require_port()
    with fresh_clone() as clone, _make(clone, "serve") as target:
        target.wait_for(SERVES, RUN_S_MAX)
        seconds = target.seconds
        print_progress(f"serving after {seconds:.0f} s")
        clients = _exchange()
        target.signal(signal.SIGTERM)
        assert "stopped cleanly" in target.output(), f"no clean stop: {target.output()[-SHOWN_CHARACTERS:]}"
    return f"serves {seconds:.0f} s after make serve; {', '.join(clients)} wrote and read"


@check(
    "run-in-a-fresh-clone",
    "make run in a fresh clone, started as a new user would, shows progress from the start and has first results, "
    "readable by other clients, within 90 s of the installation; Ctrl-C stops it cleanly, and EVENTS=… make run "
    "continues from there and passes its own check",
)
def run_in_a_fresh_clone() -> str:
    _require_port()
    if shutil.which("kcat") is None:
        raise NotRun("kcat is not on the path")
    with fresh_clone() as clone:
        with _make(clone, "run") as target:
            target.wait_for(SHOP_STARTS, RUN_S_MAX)
            installed_s = target.seconds
            print_progress(f"installed after {installed_s:.0f} s")
            target.wait_for(FIRST_RESULTS, FIRST_RESULTS_S_MAX)
            first_s = target.seconds - installed_s
            print_progress(f"first results {first_s:.0f} s later")
            clients = _exchange()
            rows = run(["kcat", "-C", "-e", "-q", "-b", f"localhost:{PORT}", "-t", RESULT_TOPIC], timeout_s=CLONE_S_MAX)
            read = [json.loads(line) for line in rows.stdout.splitlines()]
            assert read and all(row["name"] and row["city"] for row in read), f"no results: {rows.stdout[:500]!r}"
            target.signal(signal.SIGINT)
            assert STOPPED in target.output(), f"no clean stop: {target.output()[-SHOWN_CHARACTERS:]}"
        with _make(clone, "run", "EVENTS=100000") as target:
            target.wait_for(RIGHT, END_S_MAX)
            code = target.wait()
            assert code == 0, f"make run exited with {code}: {target.output()[-SHOWN_CHARACTERS:]}"
            events = next(line for line in target.output().splitlines() if " events: " in line)
    return (
        f"installed in {installed_s:.0f} s, first results {first_s:.0f} s later; {', '.join(clients)} wrote and read, kcat read "
        f"{len(read)} results; the second run continued to {events}"
    )


def _require_port() -> None:
    with socket.socket() as probe:
        probe.settimeout(1)
        if probe.connect_ex(("localhost", PORT)) == 0:
            raise NotRun(f"port {PORT} is already in use")


class _MakeTarget:
    """A running make target."""

    def __init__(self, clone: Path, arguments: Sequence[str]) -> None:
        self._command = " ".join(("make", *arguments))
        self._log = clone / f"{arguments[0]}.log"
        self._started = time.monotonic()
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(
                ["make", *arguments],
                cwd=clone,
                env={**os.environ, **_clean()},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._started

    def output(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_for(self, pattern: re.Pattern[str], seconds_max: float) -> None:
        """Wait until the output matches. Raise AssertionError if make exits or the time is over before."""
        deadline = time.monotonic() + seconds_max
        while pattern.search(self.output()) is None:
            code = self._process.poll()
            if code is not None and pattern.search(self.output()) is not None:
                return
            assert code is None, f"{self._command} exited with {code}: {self.output()[-SHOWN_CHARACTERS:]}"
            assert time.monotonic() < deadline, (
                f"{self._command} did not print {pattern.pattern!r} within {seconds_max:.0f} s: {self.output()[-SHOWN_CHARACTERS:]}"
            )
            time.sleep(0.2)

    def signal(self, number: int) -> None:
        """Signal the process group of make, as a terminal does, and wait until make has exited."""
        os.killpg(self._process.pid, number)
        self.wait()

    def wait(self) -> int:
        return self._process.wait(STOP_S_MAX)

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(STOP_S_MAX)


@contextlib.contextmanager
def _make(clone: Path, *arguments: str) -> Iterator[_MakeTarget]:
    """Run a make target; kill what is left of it at the end."""
    target = _MakeTarget(clone, arguments)
    try:
        yield target
    finally:
        target.close()


def _exchange() -> list[str]:
    """Check that kcat and confluent-kafka, where installed, read each other's records; return their names."""
    exchange = Exchange(f"localhost:{PORT}", "fresh")
    clients = [
        client for client in CLIENTS if client.missing("none") is None and client.name in ("kcat", "confluent-kafka")
    ]
    for client in clients:
        exchange.write(client, WriteOptions("none"))
    for client in clients:
        exchange.read(client)
    exchange.check()
    assert clients, "neither kcat nor confluent-kafka is installed"
    return [client.name for client in clients]


def _clean() -> dict[str, str]:
    """Return an environment in which the clone uses nothing from this run."""
    return {"PYTHONPATH": "", "VIRTUAL_ENV": ""}

"""What the README says, done by somebody who has nothing but a clone."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tools.prove.clients import CLIENTS, WriteOptions
from tools.prove.clients.matrix import Exchange
from tools.prove.commands import run
from tools.prove.registry import ROOT, NotRun, check, say

TEST_S_MAX = 900.0
CLONE_S_MAX = 120.0
RUN_S_MAX = 300.0
STOP_S_MAX = 60.0
PORT = 9092


@contextlib.contextmanager
def fresh_clone() -> Iterator[Path]:
    """Of the last commit: what is not committed is not there."""
    if not (ROOT / ".git").exists() or shutil.which("git") is None:
        raise NotRun("this is no git checkout")
    if shutil.which("make") is None:
        raise NotRun("make is not on the path")
    with tempfile.TemporaryDirectory(prefix="headrace-clone-") as directory:
        target = Path(directory, "headrace")
        run(["git", "clone", "-q", "--no-hardlinks", str(ROOT), str(target)], timeout_s=CLONE_S_MAX)
        yield target


@check("tests-in-a-fresh-clone", "make test is green in a fresh clone in under 15 minutes")
def tests_in_a_fresh_clone() -> str:
    with fresh_clone() as clone:
        began = time.monotonic()
        done = run(["make", "test"], cwd=clone, timeout_s=TEST_S_MAX, environment=_clean())
        seconds = time.monotonic() - began
    summary = done.stdout.strip().splitlines()[-1]
    return f"{seconds:.0f} s in all; {summary}"


@check("run-in-a-fresh-clone", "make run in a fresh clone serves on localhost:9092 and stops cleanly on SIGTERM")
def run_in_a_fresh_clone() -> str:
    with socket.socket() as probe:
        probe.settimeout(1)
        if probe.connect_ex(("localhost", PORT)) == 0:
            raise NotRun(f"something serves on port {PORT} already")
    with fresh_clone() as clone:
        began = time.monotonic()
        log = clone / "run.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["make", "run"],
                cwd=clone,
                env={**os.environ, **_clean()},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            _wait_until_it_serves(process, log)
            seconds = time.monotonic() - began
            say(f"serves after {seconds:.0f} s")
            clients = _exchange()
            # The whole group that was started here: make, and the node under it.
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(STOP_S_MAX)
            said = log.read_text(errors="replace")
            assert "stopped cleanly" in said, f"no clean stop: {said[-1500:]}"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(STOP_S_MAX)
    return f"serves {seconds:.0f} s after make run; {', '.join(clients)} wrote and read"


def _wait_until_it_serves(process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + RUN_S_MAX
    while " serves on " not in log.read_text(errors="replace"):
        assert process.poll() is None, f"make run ended with {process.returncode}: {log.read_text()[-2000:]}"
        assert time.monotonic() < deadline, f"make run does not serve after {RUN_S_MAX} s: {log.read_text()[-2000:]}"
        time.sleep(0.2)


def _exchange() -> list[str]:
    exchange = Exchange(f"localhost:{PORT}", "fresh")
    clients = [
        client for client in CLIENTS if client.missing("none") is None and client.name in ("kcat", "confluent-kafka")
    ]
    for client in clients:
        exchange.write(client, WriteOptions("none"))
    for client in clients:
        exchange.read(client)
    exchange.check()
    assert clients, "neither kcat nor confluent-kafka is here to try it"
    return [client.name for client in clients]


def _clean() -> dict[str, str]:
    """The clone must not borrow from the environment of this run."""
    return {"PYTHONPATH": "", "VIRTUAL_ENV": ""}

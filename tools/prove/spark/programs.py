"""Programs of this package that run Spark, as processes that can be killed as a whole or worker by worker.

A program reports events as lines of JSON and exits when its standard input closes.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from tools.prove.spark.sessions import POLL_S, Session

READ_BYTES = 1 << 16
END_S_MAX = 180.0
LOG_SHOWN_CHARACTERS = 3000
# These programs are too short for the JVM's optimizing compiler to pay off.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
DAEMON = "pyspark.daemon"


def missing() -> str | None:
    """Return why Spark cannot run here, or None."""
    try:
        import pyspark  # noqa: F401

        from headrace.pipelines.java import find_java

        find_java()
    except Exception as error:
        return f"no Spark: {error}"
    return None


class Program:
    """A running program and the events that it has reported."""

    def __init__(self, module: str, *arguments: str, log: Path, environment: Mapping[str, str] | None = None) -> None:
        self._log = log
        self._left = b""
        self.events: list[dict[str, Any]] = []
        with log.open("ab") as errors:
            command = [sys.executable, "-m", module, *arguments]
            self._session = Session(command, errors, environment or {}, with_pipes=True)
        assert self._session.process.stdin is not None and self._session.process.stdout is not None
        self._commands, self._stream = self._session.process.stdin, self._session.process.stdout
        os.set_blocking(self._stream.fileno(), False)

    @property
    def is_running(self) -> bool:
        return self._session.ended is None

    def send(self, command: str) -> None:
        """Send a command to the program's standard input."""
        self._commands.write(command.encode() + b"\n")
        self._commands.flush()

    def read_events(self) -> list[dict[str, Any]]:
        """Return the events since the last call."""
        new: list[dict[str, Any]] = []
        while True:
            try:
                more = os.read(self._stream.fileno(), READ_BYTES)
            except BlockingIOError:
                break
            if not more:
                break
            *lines, self._left = (self._left + more).split(b"\n")
            new += [json.loads(line) for line in lines if line.startswith(b"{")]
        self.events += new
        return new

    def wait_for_event(
        self, name: str, seconds_max: float, meanwhile: Callable[[], None] = lambda: None
    ) -> dict[str, Any]:
        """Return the first event with this name. Raise AssertionError if the program exits or times out before."""
        deadline = time.monotonic() + seconds_max
        while True:
            is_running = self.is_running
            self.read_events()
            found = next((one for one in self.events if one["name"] == name), None)
            if found is not None:
                return found
            assert is_running, f"the program exited before it reported {name}: {self.log_end()}"
            assert time.monotonic() < deadline, (
                f"the program did not report {name} within {seconds_max:.0f} s: {self.log_end()}"
            )
            meanwhile()
            time.sleep(POLL_S)

    def workers(self) -> list[psutil.Process]:
        """Return the Python processes that Spark forked: tasks, planners, committers."""
        return [one for one in self._session.members() if _is_worker(one)]

    def kill(self) -> None:
        """Kill the driver and its JVM, as the OOM killer would; workers notice by themselves."""
        self._session.kill_group()

    def finish(self, seconds_max: float = END_S_MAX) -> None:
        """Let the program exit by itself; its JVM may still write its class archive for the next start."""
        with suppress(OSError):
            self._commands.close()
        assert self._session.wait(seconds_max), f"the program did not exit within {seconds_max:.0f} s: {self.log_end()}"

    def close(self) -> None:
        """Kill the program and everything it has started."""
        self._session.close()

    def log_end(self) -> str:
        return self._log.read_text(errors="replace")[-LOG_SHOWN_CHARACTERS:]


def _is_worker(process: psutil.Process) -> bool:
    try:
        command, parent = process.cmdline(), process.parent()
        if DAEMON in command:
            return parent is not None and DAEMON in parent.cmdline()
        return any(part.startswith("pyspark.") for part in command)  # one that the JVM started directly
    except psutil.Error:
        return False


def report_event(name: str, **fields: Any) -> None:
    """Print an event of a program as a line of JSON."""
    print(json.dumps({"name": name, **fields}), flush=True)

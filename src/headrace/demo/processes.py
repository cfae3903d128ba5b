"""The child processes of a run.

Each ends with its parent. Each has a separate session, so that Ctrl-C reaches only the parent, which then ends them in order.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from headrace.base.processes import Process, is_alive, process_of
from headrace.demo.memory import SessionMemory

EARLY_S = 30.0
EARLY_DEATHS_MAX = 3
AGAIN_S = 1.0
LEFT_OVER_S_MAX = 15.0  # time for the processes of a killed run to end cleanly before they are killed
PAUSE_S = 0.1
LOG_SHOWN_LINES = 12
LOG_SHOWN_BYTES = 8192


class Lives:
    """Decides whether a process is restarted: always after SIGKILL, but not if it keeps ending soon after its start."""

    def __init__(self) -> None:
        self.restarts = 0
        self._started_at = 0.0
        self._early_deaths = 0

    def started(self, now: float) -> None:
        self._started_at = now

    def ended(self, code: int, now: float) -> float | None:
        """Return when to restart the process, or None if it must not be restarted."""
        is_early = code != -signal.SIGKILL and now - self._started_at < EARLY_S
        self._early_deaths = self._early_deaths + 1 if is_early else 0
        if self._early_deaths >= EARLY_DEATHS_MAX:
            return None
        self.restarts += 1
        return now + AGAIN_S


class Child:
    def __init__(self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        self.name = name
        self.lives = Lives()
        self._command = list(command)
        self._log = log
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._memory = SessionMemory()

    def start(self, now: float) -> None:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._environment},
                start_new_session=True,
            )
        self.lives.started(now)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def code(self) -> int | None:
        """Return the exit code, or the negated signal number; None while it runs."""
        return None if self._process is None else self._process.poll()

    def end(self) -> None:
        """Send SIGTERM."""
        if self.is_running and self._process is not None:
            self._process.terminate()

    def kill(self) -> None:
        """Kill the process and its descendants."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):  # the pid cannot be reused before `wait`
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        if self._process is not None:
            self.kill()
            self._process.wait()
            if self._process.stdin is not None:
                self._process.stdin.close()

    def memory_bytes(self) -> int | None:
        """Return the memory of the process and its descendants; None if the system does not report it."""
        if not self.is_running or self.pid is None:
            return None
        return self._memory.of(self.pid)  # it is a session leader

    def last_words(self) -> list[str]:
        try:
            with self._log.open("rb") as log:
                log.seek(max(0, self._log.stat().st_size - LOG_SHOWN_BYTES))
                return log.read().decode(errors="replace").splitlines()[-LOG_SHOWN_LINES:]
        except OSError:
            return []


class Register:
    """A file with the started processes, so that the next run can wait for those that a killed run has left."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, children: Iterable[Child]) -> None:
        there = {child.name: process_of(child.pid) for child in children if child.pid is not None and child.is_running}
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps({name: process for name, process in there.items() if process is not None}))
        fresh.replace(self._path)

    def left(self) -> dict[str, Process]:
        """Return the processes that are still alive, by name."""
        try:
            found = json.loads(self._path.read_text())
            all_of_them = {str(name): Process(int(pid), str(started)) for name, (pid, started) in found.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}
        return {name: one for name, one in all_of_them.items() if is_alive(one)}

    def clear(self, report: Callable[[str], None], sleep: Callable[[float], None] = time.sleep) -> None:
        """Wait until all processes have ended; kill those that do not end within LEFT_OVER_S_MAX."""
        if self.left():
            report("stopping the processes of a killed run")
        for _ in range(round(LEFT_OVER_S_MAX / PAUSE_S)):
            if not self.left():
                return
            sleep(PAUSE_S)
        for one in self.left().values():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(one.pid, signal.SIGKILL)

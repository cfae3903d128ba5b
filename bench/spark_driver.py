"""A Spark driver process with its children: kept warm between jobs, killed as a whole."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.native import ROOT
from bench.wire import BenchFailed

if TYPE_CHECKING:
    import psutil

    from bench.spark_program import Job, JobDone

PROGRAM = ("-m", "bench.spark_program")
START_S_MAX = 180.0
JOB_S_MAX = 900.0
END_S_MAX = 60.0
TURN_S = 0.05
LOOK_S = 0.5
READ_BYTES = 1 << 16
LOG_SHOWN_CHARACTERS = 3000


class SparkDriver:
    """A Spark driver in its own system session. `start` starts it, also again after `close`."""

    def __init__(self, data_format: str, program: Sequence[str] | None = None) -> None:
        """Set up a driver; Python runs `program` (default PROGRAM) with the format as its argument."""
        self._format = data_format
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._said = b""
        self._log: Path | None = None
        self.start_s = 0.0  # seconds from process start to its first result

    def start(self, work: Path) -> None:
        """Start the driver unless it runs. Raise BenchFailed with its log if it fails to start."""
        if self._process is not None:
            return
        work.mkdir(parents=True, exist_ok=True)
        self._log = work / f"spark-{self._format}.log"
        began = time.monotonic()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *(self._program or PROGRAM), self._format],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._answer(START_S_MAX)
        self.start_s = time.monotonic() - began

    def run(self, job: Job) -> JobDone:
        """Run the job. Raise BenchFailed with Spark's error if it fails."""
        from bench.spark_program import JobDone

        return JobDone(**self.ask(job.name, asdict(job)))

    def ask(self, what: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request to the program and return the response. Raise BenchFailed with Spark's error if it fails."""
        assert self._process is not None and self._process.stdin is not None, "start comes first"
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        said = self._answer(JOB_S_MAX)
        if "error" in said:
            raise BenchFailed(f'{what} with format("{self._format}"): {said["error"]}')
        return said

    def cpu_seconds(self) -> float:
        """Return the CPU time of the driver, its JVM and the workers, including those that have ended."""
        import psutil

        total = 0.0
        for process in self._processes():
            with suppress(psutil.Error):
                times = process.cpu_times()
                total += times.user + times.system + times.children_user + times.children_system
        return total

    def end(self) -> None:
        """Let the driver exit by itself, so that the JVM can write its class archive for the next start."""
        assert self._process is not None and self._process.stdin is not None, "start comes first"
        self._process.stdin.close()
        deadline = time.monotonic() + END_S_MAX
        while _members(self._process.pid) and time.monotonic() < deadline:
            time.sleep(TURN_S)
        self.close()

    def close(self) -> None:
        """Kill the whole session, reaping its first process last so that its pid is not reused meanwhile."""
        if self._process is None:
            return
        process, self._process, self._said = self._process, None, b""
        deadline = time.monotonic() + END_S_MAX
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        while members := _members(process.pid):
            for one in members:
                with suppress(ProcessLookupError):
                    os.kill(one, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise BenchFailed(f"processes {members} of Spark cannot be killed")
            time.sleep(TURN_S)
        process.wait(END_S_MAX)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    @property
    def _has_ended(self) -> bool:
        """Whether the process has exited. It is not reaped, so that its pid is not reused."""
        assert self._process is not None
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None

    def _processes(self) -> list[psutil.Process]:
        import psutil

        assert self._process is not None, "start comes first"
        first = psutil.Process(self._process.pid)
        return [first, *first.children(recursive=True)]

    def _answer(self, seconds_max: float) -> Mapping[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        deadline = time.monotonic() + seconds_max
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._said:
                has_ended = self._has_ended  # checked before reading: it may have written something before it exited
                if selector.select(LOOK_S):
                    more = os.read(self._process.stdout.fileno(), READ_BYTES)
                    self._said += more
                    has_ended |= not more
                elif time.monotonic() > deadline:
                    raise BenchFailed(f"Spark said nothing within {seconds_max:.0f} s: {self._log_end()}")
                if has_ended and b"\n" not in self._said:
                    raise BenchFailed(f"the driver of Spark ended: {self._log_end()}")
        line, _, self._said = self._said.partition(b"\n")
        found: Mapping[str, Any] = json.loads(line)
        return found

    def _log_end(self) -> str:
        return "" if self._log is None else self._log.read_text(errors="replace")[-LOG_SHOWN_CHARACTERS:]


def _members(session: int) -> list[int]:
    """Return the processes of the session besides its leader."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != session:
            with suppress(OSError):
                if os.getsid(int(entry.name)) == session:
                    found.append(int(entry.name))
    return found

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

from bench.errors import BenchFailed
from bench.paths import ROOT

if TYPE_CHECKING:
    import psutil

    from bench.spark.program import Job, JobResult

PROGRAM = ("-m", "bench.spark.program")
START_S_MAX = 180.0
JOB_S_MAX = 900.0
END_S_MAX = 60.0
EXIT_POLL_S = 0.05
OUTPUT_POLL_S = 0.5
READ_BYTES = 1 << 16
LOG_SHOWN_CHARACTERS = 3000


class SparkDriver:
    """A Spark driver in its own system session. `start` starts it, also again after `close`."""

    def __init__(self, data_format: str, program: Sequence[str] | None = None) -> None:
        """Set up a driver; Python runs `program` (default PROGRAM) with the format as its argument."""
        self._format = data_format
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._output = b""  # received, but not yet returned
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
        self._read_response(START_S_MAX)
        self.start_s = time.monotonic() - began

    def run(self, job: Job) -> JobResult:
        """Run the job. Raise BenchFailed with Spark's error if it fails."""
        from bench.spark.program import JobResult

        return JobResult(**self.request(job.name, asdict(job)))

    def request(self, name: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a request to the program and return its response. Raise BenchFailed with Spark's error if it fails."""
        assert self._process is not None and self._process.stdin is not None, "the driver is not started"
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        response = self._read_response(JOB_S_MAX)
        if "error" in response:
            raise BenchFailed(f'{name} with format("{self._format}"): {response["error"]}')
        return response

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
        assert self._process is not None and self._process.stdin is not None, "the driver is not started"
        self._process.stdin.close()
        deadline = time.monotonic() + END_S_MAX
        while _session_processes(self._process.pid) and time.monotonic() < deadline:
            time.sleep(EXIT_POLL_S)
        self.close()

    def close(self) -> None:
        """Kill the whole session, reaping its first process last so that its pid is not reused meanwhile."""
        if self._process is None:
            return
        process, self._process, self._output = self._process, None, b""
        deadline = time.monotonic() + END_S_MAX
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        while remaining := _session_processes(process.pid):
            for pid in remaining:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > deadline:
                raise BenchFailed(
                    f"Spark's processes {remaining} did not exit within {END_S_MAX:.0f} s of being killed"
                )
            time.sleep(EXIT_POLL_S)
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

        assert self._process is not None, "the driver is not started"
        first = psutil.Process(self._process.pid)
        return [first, *first.children(recursive=True)]

    def _read_response(self, seconds_max: float) -> Mapping[str, Any]:
        assert self._process is not None and self._process.stdout is not None
        deadline = time.monotonic() + seconds_max
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._output:
                has_ended = self._has_ended  # checked before reading: it may have written something before it exited
                if selector.select(OUTPUT_POLL_S):
                    more = os.read(self._process.stdout.fileno(), READ_BYTES)
                    self._output += more
                    has_ended |= not more
                elif time.monotonic() > deadline:
                    raise BenchFailed(f"no response from Spark within {seconds_max:.0f} s: {self._log_tail()}")
                if has_ended and b"\n" not in self._output:
                    raise BenchFailed(f"the Spark driver exited: {self._log_tail()}")
        line, _, self._output = self._output.partition(b"\n")
        response: Mapping[str, Any] = json.loads(line)
        return response

    def _log_tail(self) -> str:
        assert self._log is not None, "the driver is not started"
        return self._log.read_text(errors="replace")[-LOG_SHOWN_CHARACTERS:]


def _session_processes(session: int) -> list[int]:
    """Return the processes of the session besides its leader."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != session:
            with suppress(OSError):
                if os.getsid(int(entry.name)) == session:
                    found.append(int(entry.name))
    return found

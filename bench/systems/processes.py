"""Memory and CPU time of a process, and the limit of open files."""

from __future__ import annotations

import resource
import time
from pathlib import Path

from bench.errors import BenchFailed, CannotRun

_SCHEDULER_CLOCK = 2  # CPUCLOCK_SCHED: nanosecond resolution, where /proc/<pid>/stat has hundredths of a second


def rss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise BenchFailed(f"process {pid} has no resident memory: it has exited")


def cpu_seconds(pid: int) -> float:
    """Return user and system time of all its threads."""
    return time.clock_gettime((~pid << 3) | _SCHEDULER_CLOCK)


def idle_percent(pid: int, seconds: float) -> float:
    """Return the CPU usage of an idle process over this time, in percent of one core."""
    began, before = time.monotonic(), cpu_seconds(pid)
    time.sleep(seconds)
    return (cpu_seconds(pid) - before) / (time.monotonic() - began) * 100


def allow_open_files(wanted: int) -> None:
    """Raise the soft limit for this process and its future children. Raise CannotRun if the hard limit is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise CannotRun(f"{wanted} files must be open at once, but ulimit -n allows only {hard}")
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))

"""Identifies processes by pid and start time, because a pid may be reused."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

PS_S_MAX = 5.0
_START_TIME_FIELD = 19  # index in /proc/<pid>/stat, counted after the name in parentheses


class Process(NamedTuple):
    pid: int
    started: str  # start time as the system formats it; only for comparison


def process_of(pid: int) -> Process | None:
    """Return the process with this pid, or None if there is none or it is a zombie."""
    if pid <= 0:
        return None
    stat = Path(f"/proc/{pid}/stat")
    if not Path("/proc/self/stat").exists():
        return _by_ps(pid)
    try:
        fields = stat.read_text().rpartition(")")[2].split()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    return None if fields[0] in ("Z", "X") else Process(pid, f"{boot} {fields[_START_TIME_FIELD]}")


def _by_ps(pid: int) -> Process | None:
    """Return the process on systems without /proc."""
    try:
        output = subprocess.run(
            ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, timeout=PS_S_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return Process(pid, output.stdout.strip()) if output.stdout.strip() else None


def this_process() -> Process:
    found = process_of(os.getpid())
    assert found is not None, "we are here"
    return found


def is_alive(process: Process) -> bool:
    return process_of(process.pid) == process

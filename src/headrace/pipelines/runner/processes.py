"""Whether a process is still the one that it was: its number alone may have been given to another."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

PS_S_MAX = 5.0
_START_TIME_FIELD = 19  # of /proc/<pid>/stat, counted after the name in brackets


class Process(NamedTuple):
    pid: int
    started: str  # as the system tells it; only good to be compared


def process_of(pid: int) -> Process | None:
    """None if there is none by this number, or it is only waiting to be noticed dead."""
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
    """Where there is no /proc."""
    try:
        told = subprocess.run(
            ["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, timeout=PS_S_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return Process(pid, told.stdout.strip()) if told.stdout.strip() else None


def this_process() -> Process:
    found = process_of(os.getpid())
    assert found is not None, "we are here"
    return found


def is_alive(process: Process) -> bool:
    return process_of(process.pid) == process

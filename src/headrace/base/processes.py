"""Identifies processes by pid and start time, because a pid may be reused; signals them and measures them."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import NamedTuple

PS_S_MAX = 5.0
# Indexes of fields in /proc/<pid>/stat, counted after the name in parentheses.
_STATE, _USER_TICKS, _SYSTEM_TICKS, _START_TIME, _RSS_PAGES = 0, 11, 12, 19, 21
_STOPPED = "T"


class Process(NamedTuple):
    pid: int
    started: str  # start time as the system formats it; only for comparison


def process_of(pid: int) -> Process | None:
    """Return the process with this pid, or None if there is none or it is a zombie."""
    if pid <= 0:
        return None
    if not Path("/proc/self/stat").exists():
        return _by_ps(pid)
    try:
        fields = _stat(pid)
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return None
    return None if fields[_STATE] in ("Z", "X") else Process(pid, f"{boot} {fields[_START_TIME]}")


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat after the name, which may contain any character."""
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()


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


def send_signal(process: Process, number: int) -> bool:
    """Send a signal to this very process, never to another one that got its pid; return False if it has ended."""
    if not hasattr(os, "pidfd_open"):
        return is_alive(process) and _kill(process.pid, number)
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not is_alive(process):  # checked with the handle open: it stays the handle of the process that is checked
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def _kill(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


class Usage(NamedTuple):
    """What a process uses, and whether SIGSTOP has paused it."""

    is_paused: bool
    memory_bytes: int  # resident
    cpu_s: float  # user and system time since its start


def usage_of(process: Process) -> Usage | None:
    """Return what the process uses; None if it has ended or the system does not report it in /proc."""
    try:
        fields = _stat(process.pid)
        if not is_alive(process):
            return None
        return Usage(
            fields[_STATE] == _STOPPED,
            int(fields[_RSS_PAGES]) * os.sysconf("SC_PAGE_SIZE"),
            (int(fields[_USER_TICKS]) + int(fields[_SYSTEM_TICKS])) / os.sysconf("SC_CLK_TCK"),
        )
    except (OSError, IndexError, ValueError):
        return None

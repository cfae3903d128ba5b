"""Memory of a process and its descendants: Spark is a JVM and several Python workers."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

LOOK_AGAIN_S = 10.0  # a lookup is expensive because the kernel walks all pages: 0.3 s for a Spark with 3 GB
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PROC = Path("/proc")
_STAT_SESSION, _STAT_RSS_PAGES = 3, 21  # indexes of fields in /proc/PID/stat after the program name


def session_bytes(session: int, proc: Path = _PROC) -> int | None:
    """Return the memory of all processes of a session; None if the system does not report it.

    For a single process, this is its resident memory, as in `ps`. Among several, shared pages are divided, or counted for each process
    if the kernel does not report shares.
    """
    found: dict[Path, int] = {}
    try:
        entries = [entry for entry in os.listdir(proc) if entry.isdigit()]
    except OSError:
        return None
    for entry in entries:
        try:
            # The name is in parentheses and may contain any character; the fields after the last one are fixed.
            fields = (proc / entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
            if int(fields[_STAT_SESSION]) == session:
                found[proc / entry] = int(fields[_STAT_RSS_PAGES]) * _PAGE_BYTES
        except (OSError, IndexError, ValueError):
            continue  # the process has just ended
    if len(found) < 2:
        return next(iter(found.values()), None)
    return sum(_proportional_bytes(folder) or resident for folder, resident in found.items())


def _proportional_bytes(folder: Path) -> int | None:
    try:
        lines = (folder / "smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), None)


class SessionMemory:
    """Caches the memory of the last session for LOOK_AGAIN_S."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: tuple[int, float, int | None] | None = None

    def of(self, session: int) -> int | None:
        now = self._clock()
        if self._seen is None or self._seen[0] != session or now - self._seen[1] >= LOOK_AGAIN_S:
            self._seen = (session, now, session_bytes(session))
        return self._seen[2]

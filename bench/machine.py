"""Facts about the machine that a figure cannot be read without."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

from headrace.records.kernel import COMPILED

WRITE_SHARE = 0.8  # of what can be dirty before writers are held back


def facts(directory: Path) -> dict[str, str]:
    return {
        "cores": str(os.cpu_count()),
        "processor": _processor(),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "kernel": f"{platform.system()} {platform.release()}",
        "file system": _file_system(directory),
        "Python": sys.version.split()[0],
        "record kernel": "compiled" if COMPILED else "pure Python",
    }


def _processor() -> str:
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _file_system(directory: Path) -> str:
    """Of the mount that holds the directory: the longest mount point that its path begins with."""
    path = directory.absolute()
    mounts = [(Path(fields[1]), fields[2]) for line in _lines("/proc/mounts") if len(fields := line.split()) > 2]
    holding = [(len(point.parts), kind) for point, kind in mounts if path.is_relative_to(point)]
    return max(holding)[1] if holding else "unknown"


def bytes_without_throttling() -> int:
    """How much one round may write. Beyond a share of memory the kernel holds writers back to the speed of the disk, and the
    faster side of a comparison would meet that first: rounds end before it."""
    counters = dict(line.split() for line in _lines("/proc/vmstat") if line.startswith("nr_dirty_"))
    try:
        pages = (int(counters["nr_dirty_threshold"]) + int(counters["nr_dirty_background_threshold"])) // 2
    except KeyError:
        return 2 * 10**9
    return int(pages * os.sysconf("SC_PAGE_SIZE") * WRITE_SHARE)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []

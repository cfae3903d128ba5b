"""Facts about the machine that are needed to interpret the figures."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

from headrace.records.kernel import COMPILED

WRITE_SHARE = 0.8  # share of the dirty memory that the kernel allows before it throttles writers


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
    """Return the type of the file system that holds the directory: that of the longest matching mount point."""
    path = directory.absolute()
    mounts = [(Path(fields[1]), fields[2]) for line in _lines("/proc/mounts") if len(fields := line.split()) > 2]
    holding = [(len(point.parts), kind) for point, kind in mounts if path.is_relative_to(point)]
    return max(holding)[1] if holding else "unknown"


def bytes_without_throttling() -> int:
    """Return how many bytes one round may write.

    Beyond a share of dirty memory the kernel throttles writers to the speed of the disk. The faster side of a
    comparison would be throttled first, so rounds end before that.
    """
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

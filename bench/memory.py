"""Reserved memory that the page cache can grow into at its real cost.

A virtual machine may return free memory to its host (free page reporting, in blocks of 2 MiB and more). Using it again
then costs ten times as much as the write itself, at random. Holding one page in every 2 MiB keeps the rest of a region
free for the page cache, but in blocks too small to be returned. Measured on the development machine: 0.2 CPU s/GB with
the reserve, 0.2 to 2.4 without.
"""

from __future__ import annotations

import mmap
import os

BLOCK = 2 * 1024 * 1024
AVAILABLE_SHARE = 0.5  # maximum share of the free memory to reserve


def reserve_memory(size: int) -> mmap.mmap:
    """Touch about `size` bytes and free nearly all of them; they stay usable until the returned map is closed."""
    size = max(1, min(size, int(_available() * AVAILABLE_SHARE)) // BLOCK) * BLOCK
    region = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    region.madvise(mmap.MADV_NOHUGEPAGE)
    page = mmap.PAGESIZE
    for at in range(0, size, page):
        region[at] = 1
    for at in range(0, size, BLOCK):
        region.madvise(mmap.MADV_DONTNEED, at + page, BLOCK - page)
    return region


def _available() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")

"""The port to the disk. `disk` is the real one, `testing.simulator.disk` the one that tears, forgets, fills up and flips bits.

Every method may raise OSError. Nothing is durable before `sync` (contents) and `sync_dir` (names).
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

Buffer = bytes | bytearray | memoryview


DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
STARVED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def is_passing(error: OSError) -> bool:
    """A disk without room, or a process without descriptors or memory: what is stored is sound, and a later try may succeed."""
    return error.errno in DISK_FULL or error.errno in STARVED


def bytes_lacking(error: OSError, wanted: int) -> int | None:
    """Return how much space would let a write of `wanted` bytes succeed; None if space was not what it lacked.

    What a user's quota still allows cannot be asked of a volume, so with EDQUOT no amount is known to be enough."""
    if error.errno not in DISK_FULL:
        return None
    return wanted if error.errno == errno.ENOSPC else sys.maxsize


class ShortWrite(OSError):
    """The disk took only a part; the file was cut back to where it was before the write."""


class File(Protocol):
    """One open file. Reads and appends name their position: there is no cursor."""

    path: str

    def size(self) -> int: ...

    def append(self, data: Buffer) -> int:
        """Writes at the end and returns the position of the first byte. All or nothing: a short write is cut back, then raised."""

    def read(self, position: int, size: int) -> bytes:
        """May return fewer bytes at the end of the file."""

    def read_cached(self, position: int, size: int) -> bytes | None:
        """The same if all of it lies in memory; None says: ask again with `read` in a thread."""

    def is_cached(self, position: int, size: int) -> bool:
        """Whether all of it lies in memory now, as far as a few looks can tell."""

    def send(self, descriptor: int, position: int, size: int) -> int:
        """From the file to a socket without a copy through us; returns how much went. BlockingIOError if the socket is full."""

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None: ...

    def move(self, path: str) -> None:
        """Renames it, atomically; whoever holds the file goes on using it."""

    def close(self) -> None: ...


class Files(Protocol):
    def open(self, path: str, *, create: bool = False) -> File:
        """FileNotFoundError unless it exists or create is true."""

    def list_dir(self, path: str) -> Sequence[str]:
        """Sorted names; FileNotFoundError if there is no such directory."""

    def make_dirs(self, path: str) -> None: ...

    def rename(self, source: str, target: str) -> None:
        """Atomic, replaces the target; files and directories."""

    def remove(self, path: str) -> None:
        """A file, or a directory with all it holds; no error if it is gone."""

    def exists(self, path: str) -> bool: ...

    def modified_ms(self, path: str) -> int:
        """When the contents last changed, by the clock of the machine."""

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        """For a file that stands for another: it is as old as that one."""

    def space(self, path: str) -> tuple[int, int]:
        """Bytes of the volume that holds it: all of them, and those that can still be used."""

    def sync_dir(self, path: str) -> None: ...

    def lock(self, path: str) -> AbstractContextManager[None]:
        """An exclusive lock between processes; BlockingIOError if another holds it. Held until the context is closed."""


def read_all(files: Files, path: str, limit: int) -> bytes:
    """A whole small file; OSError if it is larger than `limit`: nobody reads a checkpoint of gigabytes into memory."""
    file = files.open(path)
    try:
        size = file.size()
        if size > limit:
            raise OSError(f"{path} has {size} bytes, more than the {limit} allowed")
        return file.read(0, size)
    finally:
        file.close()


def write_atomically(files: Files, path: str, data: bytes) -> None:
    """Replaces a file so that a crash leaves the old or the new content, never a mixture."""
    temporary = path + ".tmp"
    file = files.open(temporary, create=True)
    try:
        file.truncate(0)
        file.append(data)
        file.sync()  # BEFORE the rename: a name must never point at contents that a crash can take away
    finally:
        file.close()
    files.rename(temporary, path)
    files.sync_dir(path.rsplit("/", 1)[0])

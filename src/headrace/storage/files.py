"""The port to the disk.

`disk` is the real implementation; `testkit.simulator.disk` simulates torn and lost writes, full disks and flipped bits.
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
OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


def is_transient(error: OSError) -> bool:
    """Return whether the error is a lack of disk space, descriptors or memory.

    The stored data is then intact, and a later attempt may succeed.
    """
    return error.errno in DISK_FULL or error.errno in OUT_OF_RESOURCES


def free_bytes_needed(error: OSError, batch_bytes: int) -> int | None:
    """Return how much free space a write of `batch_bytes` needs; None if the error is not a lack of space.

    A volume does not report what a user's quota still allows, so for EDQUOT no amount is known to be enough.
    """
    if error.errno not in DISK_FULL:
        return None
    return batch_bytes if error.errno == errno.ENOSPC else sys.maxsize


class ShortWrite(OSError):
    """The disk accepted only part of the data; the file was truncated to its size before the write."""


class File(Protocol):
    """An open file without a cursor: reads name their position, and appends go to the end."""

    path: str

    def size(self) -> int: ...

    def append(self, data: Buffer) -> int:
        """Write at the end and return the position of the first byte.

        All or nothing: after a short write the file is truncated to its old size and ShortWrite is raised.
        """

    def read(self, position: int, size: int) -> bytes:
        """Return `size` bytes at `position`, or fewer at the end of the file."""

    def read_cached(self, position: int, size: int) -> bytes | None:
        """Return what `read` would if all of it is in the page cache; None if the caller must `read` in a thread."""

    def is_cached(self, position: int, size: int) -> bool:
        """Return whether the range is in the page cache, as far as a few probes can tell."""

    def send(self, descriptor: int, position: int, size: int) -> int:
        """Send bytes from the file to a socket without copying them through the process; return how many were sent.

        Raise BlockingIOError if the socket is full.
        """

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None: ...

    def move(self, path: str) -> None:
        """Rename the file atomically; this object stays usable."""

    def close(self) -> None: ...


class Files(Protocol):
    def open(self, path: str, *, create: bool = False) -> File:
        """Open a file. Raise FileNotFoundError if it does not exist and `create` is false."""

    def list_dir(self, path: str) -> Sequence[str]:
        """Return the names in a directory, sorted. Raise FileNotFoundError if there is no such directory."""

    def make_dirs(self, path: str) -> None: ...

    def rename(self, source: str, target: str) -> None:
        """Rename a file or directory atomically, replacing the target."""

    def remove(self, path: str) -> None:
        """Remove a file, or a directory with its contents; do nothing if it does not exist."""

    def exists(self, path: str) -> bool: ...

    def modified_ms(self, path: str) -> int:
        """Return the time of the last change of the contents, by the machine's clock."""

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        """Set the modification time, so that a file that replaces another one keeps its age."""

    def space(self, path: str) -> tuple[int, int]:
        """Return the total and the usable free bytes of the volume that contains `path`."""

    def sync_dir(self, path: str) -> None: ...

    def lock(self, path: str) -> AbstractContextManager[None]:
        """Lock `path` against other processes until the context exits. Raise BlockingIOError if it is locked."""


def read_all(files: Files, path: str, limit: int) -> bytes:
    """Return the contents of a small file. Raise OSError if it is larger than `limit` bytes."""
    file = files.open(path)
    try:
        size = file.size()
        if size > limit:
            raise OSError(f"{path} has {size} bytes, more than the {limit} allowed")
        return file.read(0, size)
    finally:
        file.close()


def write_atomically(files: Files, path: str, data: bytes) -> None:
    """Replace a file so that a crash leaves the old or the new contents, never a mixture."""
    temporary = path + ".tmp"
    file = files.open(temporary, create=True)
    try:
        file.truncate(0)
        file.append(data)
        file.sync()  # BEFORE the rename: a name must never point at contents that a crash can lose
    finally:
        file.close()
    files.rename(temporary, path)
    files.sync_dir(path.rsplit("/", 1)[0])

"""An in-memory disk behind the Files port: written data is in the page cache, synced data is on the disk.

A process that dies loses nothing that it wrote. A power loss keeps the synced part of each file, and a part of the rest that the seed
chooses: cut at any byte, perhaps followed by zeros or garbage, perhaps with a hole. Of each directory it keeps the synced names and the
first few later changes. `fault` makes any call fail, `capacity` makes the disk full.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from random import Random

from headrace.storage.files import Buffer, ShortWrite

SECTOR_BYTES = 512
UNCACHED_SHARE = 0.05  # share of cached reads that miss the page cache
TORN_SHARE = 0.5
HOLE_SHARE = 0.15

Fault = Callable[[str, str], OSError | None]


class _Contents:
    """The contents of a file, independent of its names."""

    __slots__ = ("changed_from", "data", "durable", "forgotten", "modified_ms")

    def __init__(self) -> None:
        self.data = bytearray()
        self.durable = b""
        self.changed_from: int | None = None  # index of the lowest byte changed since the last sync
        self.modified_ms = 0
        self.forgotten = False  # a sync failed: the kernel has marked the pages clean, and no later sync writes them

    def write(self, position: int, data: Buffer) -> None:
        self._change(min(position, len(self.data)))
        if position > len(self.data):
            self.data += bytes(position - len(self.data))
        self.data[position : position + len(data)] = data

    def truncate(self, size: int) -> None:
        if size != len(self.data):
            self._change(min(size, len(self.data)))
            del self.data[size:]
            self.data += bytes(size - len(self.data))

    def _change(self, position: int) -> None:
        self.changed_from = position if self.changed_from is None else min(self.changed_from, position)

    def sync(self) -> None:
        if not self.forgotten:
            self.durable = bytes(self.data)
            self.changed_from = None

    def lose_power(self, random: Random) -> None:
        if self.changed_from is not None:
            self.data = bytearray(self._survivors(self.changed_from, random))
        self.durable, self.changed_from, self.forgotten = bytes(self.data), None, False

    def _survivors(self, changed_from: int, random: Random) -> bytes:
        if changed_from < len(self.durable) and (self.forgotten or random.random() < 0.5):
            return self.durable  # not even the truncation reached the disk
        kept, tail = self.data[:changed_from], self.data[changed_from:]
        cut = 0 if self.forgotten else random.randint(0, len(tail))
        kept += tail[:cut]
        torn = min(len(tail) - cut, random.randint(1, SECTOR_BYTES))
        if torn > 0 and random.random() < TORN_SHARE:
            kept += bytes(torn) if random.random() < 0.5 else random.randbytes(torn)
        first_sector = changed_from // SECTOR_BYTES + 1
        last_sector = (changed_from + cut) // SECTOR_BYTES - 1
        if first_sector <= last_sector and random.random() < HOLE_SHARE:
            hole = random.randint(first_sector, last_sector) * SECTOR_BYTES
            kept[hole : hole + SECTOR_BYTES] = bytes(SECTOR_BYTES)
        return bytes(kept)


SPACE_BYTES = 1 << 40  # reported size of a disk without a capacity


class _Directory:
    __slots__ = ("durable", "entries", "pending")

    def __init__(self) -> None:
        self.entries: dict[str, _Contents | _Directory] = {}
        self.durable: dict[str, _Contents | _Directory] = {}
        self.pending: list[dict[str, _Contents | _Directory | None]] = []  # unsynced changes; None removes a name

    def change(self, changes: dict[str, _Contents | _Directory | None]) -> None:
        self.pending.append(changes)
        _change(self.entries, changes)

    def sync(self) -> None:
        self.durable = dict(self.entries)
        self.pending.clear()

    def keep(self, kept: Container[int]) -> None:
        """Apply only the pending changes whose index is in `kept`; drop the others."""
        for number, changes in enumerate(self.pending):
            if number in kept:
                _change(self.durable, changes)
        self.entries = dict(self.durable)
        self.pending.clear()

    def lose_power(self, random: Random) -> None:
        self.keep(range(random.randint(0, len(self.pending))))
        for name in sorted(self.entries):
            self.entries[name].lose_power(random)


def _change(entries: dict[str, _Contents | _Directory], changes: dict[str, _Contents | _Directory | None]) -> None:
    for name, found in changes.items():
        if found is None:
            entries.pop(name, None)
        else:
            entries[name] = found


class SimulatedFile:
    """An open file of one run of the machine's process; using it after the process has died is an AssertionError."""

    __slots__ = ("_closed", "_contents", "_files", "_run", "_size", "path")

    def __init__(self, files: SimulatedFiles, path: str, contents: _Contents) -> None:
        self.path = path
        self._files = files
        self._contents = contents
        self._run = files.run
        self._size = len(contents.data)
        self._closed = False

    def _use(self, operation: str, detail: int = 0) -> _Contents:
        if self._closed:
            raise ValueError(f"{self.path} is closed")
        assert self._run == self._files.run, f"{operation} of {self.path} by a process that has ended"
        self._files.ask(operation, self.path, detail)
        return self._contents

    def size(self) -> int:
        return self._size

    def append(self, data: Buffer) -> int:
        contents = self._use("append", len(data))
        position = self._size
        space_left = self._files.space_left()
        if space_left is not None and len(data) > space_left:
            if space_left > 0:
                raise ShortWrite(errno.ENOSPC, f"{space_left} of {len(data)} bytes written", self.path)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
        contents.write(position, data)
        contents.modified_ms = self._files.now_ms()
        self._size = position + len(data)
        return position

    def read(self, position: int, size: int) -> bytes:
        size = min(size, self._size - position)
        if size <= 0:
            return b""
        return bytes(self._use("read", size).data[position : position + size])

    def read_cached(self, position: int, size: int) -> bytes | None:
        if min(size, self._size - position) > 0 and self._files.is_uncached():
            self._use("read_cached")
            return None
        return self.read(position, size)

    def is_cached(self, position: int, size: int) -> bool:
        return not self._files.is_uncached()

    def send(self, descriptor: int, position: int, size: int) -> int:
        raise AssertionError(f"{self.path}: simulated connections have no descriptors")

    def truncate(self, size: int) -> None:
        self._use("truncate", size).truncate(size)
        self._size = size

    def sync(self) -> None:
        try:
            contents = self._use("sync")
        except OSError:
            self._contents.forgotten = True
            raise
        contents.sync()

    def move(self, path: str) -> None:
        self._files.rename(self.path, path)
        self.path = path

    def close(self) -> None:
        self._closed = True


class SimulatedFiles:
    def __init__(self, random: Random, trace: Callable[[str], None] | None = None) -> None:
        self._random = random
        self._trace = trace
        self._root = _Directory()
        self._locks: dict[str, int] = {}  # the run that holds each locked path
        self.run = 0
        self.capacity: int | None = None
        self.fault: Fault | None = None
        self.uncached_share = UNCACHED_SHARE
        self.now_ms: Callable[[], int] = lambda: 0  # clock of the machine, for modification times

    # --- faults

    def process_crash(self) -> None:
        """Close the files and release the locks of the dead process; keep what it wrote."""
        self.run += 1
        self._locks.clear()

    def power_loss(self) -> None:
        self.process_crash()
        self._root.lose_power(self._random)

    def unsynced_names(self, path: str) -> int:
        """Return the number of name changes in a directory since its last sync."""
        return len(self._directory(path).pending)

    def lose_names(self, path: str, kept: Container[int]) -> None:
        """Lose power without losing contents: of the unsynced name changes, keep only those whose index is in `kept`.

        `power_loss` always keeps the first ones, which no file system guarantees.
        """
        self.process_crash()
        self._directory(path).keep(kept)

    def flip_bit(self, path: str, position: int, bit: int) -> None:
        """Flip a bit on the disk itself, so that every later read sees it."""
        contents = self._contents(path)
        contents.data[position] ^= 1 << bit
        if position < len(contents.durable):
            durable = bytearray(contents.durable)
            durable[position] ^= 1 << bit
            contents.durable = bytes(durable)

    def synced(self, path: str) -> bytes | None:
        """Return what the disk itself has of a file, or None if its name is not synced."""
        found: _Contents | _Directory | None = self._root
        for name in _split(path):
            found = found.durable.get(name) if isinstance(found, _Directory) else None
        return found.durable if isinstance(found, _Contents) else None

    def used(self) -> int:
        return sum(len(contents.data) for _, contents in self.walk())

    def walk(self) -> Iterator[tuple[str, _Contents]]:
        """Yield all files with their paths."""
        waiting: list[tuple[str, _Directory]] = [("", self._root)]
        while waiting:
            prefix, directory = waiting.pop()
            for name, found in sorted(directory.entries.items()):
                if isinstance(found, _Directory):
                    waiting.append((f"{prefix}{name}/", found))
                else:
                    yield prefix + name, found

    # --- for open files

    def ask(self, operation: str, path: str, detail: int = 0) -> None:
        if self._trace is not None:
            self._trace(f"disk {operation} {path} {detail}")
        if self.fault is not None:
            error = self.fault(operation, path)
            if error is not None:
                raise error

    def space_left(self) -> int | None:
        return None if self.capacity is None else max(0, self.capacity - self.used())

    def is_uncached(self) -> bool:
        return self._random.random() < self.uncached_share

    # --- Files

    def open(self, path: str, *, create: bool = False) -> SimulatedFile:
        parent, name = self._parent(path)
        found = parent.entries.get(name)
        if isinstance(found, _Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        self.ask("create" if found is None and create else "open", path)
        if found is None:
            if not create:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            found = _Contents()
            parent.change({name: found})
        return SimulatedFile(self, path, found)

    def list_dir(self, path: str) -> Sequence[str]:
        return sorted(self._directory(path).entries)

    def make_dirs(self, path: str) -> None:
        directory = self._root
        parts = _split(path)
        for number, name in enumerate(parts, start=1):
            found = directory.entries.get(name)
            if found is None:
                self.ask("make_dir", path)
                found = _Directory()
                directory.change({name: found})
            if not isinstance(found, _Directory):
                wrong = errno.EEXIST if number == len(parts) else errno.ENOTDIR
                raise OSError(wrong, os.strerror(wrong), path)
            directory = found

    def rename(self, source: str, target: str) -> None:
        """Rename atomically within a directory; between two, a power loss may leave both names or none."""
        old_parent, old_name = self._parent(source)
        new_parent, new_name = self._parent(target)
        moved = old_parent.entries.get(old_name)
        if moved is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        self._check_rename(source, target, moved, new_parent.entries.get(new_name))
        self.ask("rename", f"{source} {target}")
        if moved is new_parent.entries.get(new_name):
            return
        if old_parent is new_parent:
            old_parent.change({old_name: None, new_name: moved})
        else:
            new_parent.change({new_name: moved})
            old_parent.change({old_name: None})

    @staticmethod
    def _check_rename(
        source: str, target: str, moved: _Contents | _Directory, replaced: _Contents | _Directory | None
    ) -> None:
        wrong = 0
        old, new = _split(source), _split(target)
        if len(new) < len(old) and old[: len(new)] == new:
            wrong = errno.ENOTEMPTY
        elif isinstance(moved, _Directory):
            if len(old) < len(new) and new[: len(old)] == old:
                wrong = errno.EINVAL
            elif isinstance(replaced, _Contents):
                wrong = errno.ENOTDIR
            elif replaced is not None and replaced is not moved and replaced.entries:
                wrong = errno.ENOTEMPTY
        elif isinstance(replaced, _Directory):
            wrong = errno.EISDIR
        if wrong:
            raise OSError(wrong, os.strerror(wrong), source)

    def remove(self, path: str) -> None:
        try:
            parent, name = self._parent(path)
        except FileNotFoundError:
            return
        if name in parent.entries:
            self.ask("remove", path)
            parent.change({name: None})

    def exists(self, path: str) -> bool:
        try:
            parent, name = self._parent(path)
        except OSError:
            return False
        return name in parent.entries

    def modified_ms(self, path: str) -> int:
        return self._contents(path).modified_ms

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        self._contents(path).modified_ms = modified_ms

    def space(self, path: str) -> tuple[int, int]:
        self._directory(path)
        capacity = SPACE_BYTES if self.capacity is None else self.capacity
        return capacity, max(0, capacity - self.used())

    def sync_dir(self, path: str) -> None:
        directory = self._directory(path)
        self.ask("sync_dir", path)
        directory.sync()

    @contextmanager
    def lock(self, path: str) -> Iterator[None]:
        self.open(path, create=True).close()
        if path in self._locks:
            raise BlockingIOError(errno.EAGAIN, "locked by another process", path)
        run = self._locks[path] = self.run
        try:
            yield
        finally:
            if self._locks.get(path) == run == self.run:
                del self._locks[path]

    # --- paths

    def _directory(self, path: str) -> _Directory:
        directory = self._root
        for name in _split(path):
            found = directory.entries.get(name)
            if found is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            if not isinstance(found, _Directory):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            directory = found
        return directory

    def _parent(self, path: str) -> tuple[_Directory, str]:
        parts = _split(path)
        return self._directory("/".join(parts[:-1])), parts[-1]

    def _contents(self, path: str) -> _Contents:
        parent, name = self._parent(path)
        found = parent.entries[name]
        assert isinstance(found, _Contents), path
        return found


def _split(path: str) -> list[str]:
    return [part for part in path.split("/") if part]

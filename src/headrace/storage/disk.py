"""The real disk behind the Files port.

Descriptors are scarce (thousands of partitions, three files per segment). A file always keeps its path and size, but beyond the
bound the descriptors that were not used recently are closed and reopened on demand.
"""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import shutil
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Lock

from headrace.storage.files import Buffer, ShortWrite

OPEN_FILES_MIN = 64
OPEN_FILES_RESERVE_MIN = 256  # descriptors for sockets, libraries and the event loop
EXACT_PROBE_BYTES = 64 * 1024
# Half of the kernel's usual read-ahead: pages that were read together mostly stay cached together.
PROBE_STRIDE_BYTES = 64 * 1024
FILE_MODE = 0o644
_CACHED_ONLY = getattr(os, "RWF_NOWAIT", 0)
_NOT_CACHED = frozenset({errno.EAGAIN, errno.EWOULDBLOCK})
_UNSUPPORTED = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})


def open_files_bound() -> int:
    """Return how many log files may be open.

    A quarter of the process limit, at least the reserve, is left for everything else.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        soft = 1 << 20
    return max(OPEN_FILES_MIN, soft - max(OPEN_FILES_RESERVE_MIN, soft // 4))


class DiskFile:
    """An open file. Appends and truncations come from one thread; reads and syncs may come from others.

    The lock guards the descriptor and is not held during reads and syncs. They pin the descriptor instead, so that it is not
    closed, and its number not reused by the kernel, while they run.
    """

    __slots__ = ("_closed", "_descriptor", "_files", "_lock", "_pins", "_size", "_used", "path")

    def __init__(self, files: DiskFiles, path: str, descriptor: int, size: int) -> None:
        self.path = path
        self._files = files
        self._descriptor = descriptor
        self._size = size
        self._used = True
        self._pins = 0
        self._lock = Lock()
        self._closed = False

    def size(self) -> int:
        return self._size

    def append(self, data: Buffer) -> int:
        position = self._size
        self._used = True
        with self._lock:
            if self._descriptor < 0:
                self._reopen()
            try:
                written = os.pwrite(self._descriptor, data, position)
            except OSError as error:
                os.ftruncate(self._descriptor, position)
                error.filename = self.path  # errors of calls on a descriptor lack the path
                raise
            if written != len(data):
                os.ftruncate(self._descriptor, position)
                raise ShortWrite(errno.ENOSPC, f"{written} of {len(data)} bytes written", self.path)
        self._size = position + written
        return position

    def read(self, position: int, size: int) -> bytes:
        size = min(size, self._size - position)
        if size <= 0:
            return b""
        descriptor = self._pin()
        try:
            data = os.pread(descriptor, size, position)
            while len(data) < size:
                more = os.pread(descriptor, size - len(data), position + len(data))
                if not more:
                    break
                data += more
            return data
        finally:
            self._unpin()

    def read_cached(self, position: int, size: int) -> bytes | None:
        size = min(size, self._size - position)
        if size <= 0:
            return b""
        if not _CACHED_ONLY:
            return self.read(position, size)
        descriptor = self._pin()
        try:
            if size <= EXACT_PROBE_BYTES:
                buffer = bytearray(size)
                got = os.preadv(descriptor, (buffer,), position, _CACHED_ONLY)
                return bytes(buffer) if got == size else None
            # A large range is probed with single bytes and then read at once: a read into a bytearray would copy it twice.
            _probe(descriptor, position, size)
            return os.pread(descriptor, size, position)
        except OSError as error:
            if error.errno in _NOT_CACHED:
                return None
            if error.errno in _UNSUPPORTED:
                return os.pread(descriptor, size, position)
            raise
        finally:
            self._unpin()

    def is_cached(self, position: int, size: int) -> bool:
        if not _CACHED_ONLY:
            return True
        descriptor = self._pin()
        try:
            _probe(descriptor, position, min(size, self._size - position))
            return True
        except OSError as error:
            if error.errno in _NOT_CACHED:
                return False
            if error.errno in _UNSUPPORTED:
                return True
            raise
        finally:
            self._unpin()

    def send(self, descriptor: int, position: int, size: int) -> int:
        source = self._pin()
        try:
            return os.sendfile(descriptor, source, position, size)
        finally:
            self._unpin()

    def truncate(self, size: int) -> None:
        with self._lock:
            if self._descriptor < 0:
                self._reopen()
            try:
                os.ftruncate(self._descriptor, size)
            except OSError as error:
                error.filename = self.path
                raise
        self._size = size

    def sync(self) -> None:
        descriptor = self._pin()
        try:
            os.fdatasync(descriptor)
        except OSError as error:
            error.filename = self.path
            raise
        finally:
            self._unpin()

    def move(self, path: str) -> None:
        with self._lock:  # a reader that must reopen the file always finds it at `path`
            os.replace(self.path, path)
            self.path = path

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._files.closed(self)
            if self._pins == 0 and self._descriptor >= 0:
                self._close_descriptor()

    def release_descriptor(self) -> bool:
        """Close the descriptor to free a slot; return False if it is in use or was used recently."""
        if self._used:
            self._used = False
            return False
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._pins:
                return False
            if self._descriptor >= 0:
                self._close_descriptor()
            return True
        finally:
            self._lock.release()

    def _pin(self) -> int:
        self._used = True
        with self._lock:
            if self._descriptor < 0:
                self._reopen()
            self._pins += 1
            return self._descriptor

    def _unpin(self) -> None:
        with self._lock:
            self._pins -= 1
            if self._closed and self._pins == 0 and self._descriptor >= 0:
                self._close_descriptor()

    def _reopen(self) -> None:
        if self._closed:
            raise ValueError(f"{self.path} is closed")
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        self._files.opened(self)

    def _close_descriptor(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)


def _probe(descriptor: int, position: int, size: int) -> None:
    """Read one byte per read-ahead stretch and the last byte. Raise BlockingIOError if one is not in the page cache."""
    byte = (bytearray(1),)
    last = position + size - 1
    for probe in range(position, last, PROBE_STRIDE_BYTES):
        os.preadv(descriptor, byte, probe, _CACHED_ONLY)
    os.preadv(descriptor, byte, last, _CACHED_ONLY)


class DiskFiles:
    """The real file system.

    Descriptors to close are chosen by the second-chance algorithm, an approximation of LRU that costs one store on the hot path.
    """

    def __init__(self, open_files_max: int | None = None) -> None:
        self.open_files_max = open_files_bound() if open_files_max is None else open_files_max
        self._open: OrderedDict[DiskFile, None] = OrderedDict()

    def open(self, path: str, *, create: bool = False) -> DiskFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        descriptor = os.open(path, flags, FILE_MODE)
        try:
            size = os.fstat(descriptor).st_size
        except OSError:
            os.close(descriptor)
            raise
        file = DiskFile(self, path, descriptor, size)
        self.opened(file)
        return file

    def opened(self, file: DiskFile) -> None:
        held = self._open
        held[file] = None
        # Each file is checked at most twice, so that the loop ends even if all are in use.
        looks = 2 * len(held)
        while len(held) > self.open_files_max and looks > 0:
            looks -= 1
            try:
                oldest, _ = held.popitem(last=False)
            except KeyError:  # another thread closed files
                return
            if oldest is file or not oldest.release_descriptor():
                held[oldest] = None

    def closed(self, file: DiskFile) -> None:
        self._open.pop(file, None)

    def open_descriptors(self) -> int:
        return len(self._open)

    def close(self) -> None:
        """Close every file that is still open."""
        for file in list(self._open):
            file.close()

    def list_dir(self, path: str) -> Sequence[str]:
        return sorted(os.listdir(path))

    def make_dirs(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        try:
            if os.path.isdir(path) and not os.path.islink(path):
                shutil.rmtree(path)
            else:
                os.unlink(path)
        except FileNotFoundError:
            return

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def set_modified_ms(self, path: str, modified_ms: int) -> None:
        os.utime(path, ns=(modified_ms * 1_000_000,) * 2)

    def space(self, path: str) -> tuple[int, int]:
        found = os.statvfs(path)
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize

    def sync_dir(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    @contextmanager
    def lock(self, path: str) -> Iterator[None]:
        """Take two locks: `flock` also works between two nodes in one process, and Java processes use `lockf`."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except PermissionError as error:  # POSIX allows EACCES as well as EAGAIN
                raise BlockingIOError(errno.EAGAIN, "locked by another process", path) from error
            yield
        finally:
            os.close(descriptor)

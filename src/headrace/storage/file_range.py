"""The result of a log read: where the batches are in a file. It stays readable after the segment leaves the log."""

from __future__ import annotations

from typing import NamedTuple

from headrace.storage.files import File

SEND_FILE_MIN = 128 * 1024  # bytes; below this, read and write cost less than sendfile


class FileRange:
    """A range of bytes in a log file.

    It is read on the event loop if it is in the page cache and in a thread if not, or it is sent from file to socket.
    """

    __slots__ = ("file", "position", "size")

    def __init__(self, file: File, position: int, size: int) -> None:
        self.file = file
        self.position = position
        self.size = size

    def __len__(self) -> int:
        return self.size

    def read(self) -> bytes:
        return self.file.read(self.position, self.size) if self.size else b""

    def read_cached(self) -> bytes | FileRange | None:
        """Return the bytes of a small range, a large range itself (for `send_to`), or None if not all is cached."""
        if self.size < SEND_FILE_MIN:
            return self.file.read_cached(self.position, self.size) if self.size else b""
        return self if self.file.is_cached(self.position, self.size) else None

    def send_to(self, descriptor: int) -> int:
        return self.file.send(descriptor, self.position, self.size)

    def front(self, size: int) -> bytes:
        """Return up to `size` bytes from the start of the range.

        Raise OSError if the file now ends before the range: the response already announces these bytes.
        """
        data = self.file.read(self.position, min(size, self.size))
        if not data:
            raise OSError(f"{self.file.path} ends before {self.position}")
        return data

    def after(self, size: int) -> FileRange:
        return FileRange(self.file, self.position + size, self.size - size)


class LogRead(NamedTuple):
    """Batches from the one that contains the requested offset; only the byte limit may cut the last one short."""

    range: FileRange
    # Base offset of the first batch, or an offset in the gap before it; above the requested offset if records were removed.
    first_offset: int
    first_batch_size: int  # bytes; a shorter range is of no use

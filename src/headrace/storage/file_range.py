"""What a read gives: where the bytes of whole batches lie. They stay readable while the segment leaves the log."""

from __future__ import annotations

from typing import NamedTuple

from headrace.storage.files import File

SEND_FILE_MIN = 128 * 1024  # below it, reading and writing costs less than a sendfile


class FileRange:
    """Bytes of a log file: to be read here if they are in memory, in a thread if not, or to be sent from file to socket."""

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
        """Its bytes if they are few; itself, for `send_to`, if they are many; None if they do not all lie in memory."""
        if self.size < SEND_FILE_MIN:
            return self.file.read_cached(self.position, self.size) if self.size else b""
        return self if self.file.is_cached(self.position, self.size) else None

    def send_to(self, descriptor: int) -> int:
        return self.file.send(descriptor, self.position, self.size)

    def front(self, size: int) -> bytes:
        """OSError if the file has become shorter: somebody was promised these bytes."""
        data = self.file.read(self.position, min(size, self.size))
        if not data:
            raise OSError(f"{self.file.path} ends before {self.position}")
        return data

    def behind(self, size: int) -> FileRange:
        return FileRange(self.file, self.position + size, self.size - size)


class LogRead(NamedTuple):
    """Whole batches from the one that holds the asked offset on; only the limit of bytes may cut the last one short."""

    range: FileRange
    first_offset: int  # of the first batch: at or below the asked offset, above it where records were removed
    first_batch_size: int  # what the range must hold to be of use

"""The file of an index, opened on first use and renamed with its segment."""

from __future__ import annotations

from contextlib import suppress

from headrace.storage.files import File, Files


class IndexFile:
    __slots__ = ("_file", "_files", "path")

    def __init__(self, files: Files, path: str) -> None:
        self._files = files
        self.path = path
        self._file: File | None = None

    def set_path(self, path: str) -> None:
        """Update the path after the directory was renamed."""
        self.path = path
        if self._file is not None:
            self._file.path = path

    def move(self, path: str) -> None:
        """Rename the file, if it exists."""
        if self._file is not None:
            self._file.move(path)
        else:
            with suppress(FileNotFoundError):
                self._files.rename(self.path, path)
        self.path = path

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open_file(self, *, create: bool = False) -> File:
        if self._file is None:
            self._file = self._files.open(self.path, create=create)
        return self._file

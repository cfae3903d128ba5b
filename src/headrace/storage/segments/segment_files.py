"""The files of one segment: the `.log` file and its indexes, which are named, renamed and removed together."""

from __future__ import annotations

from headrace.storage.files import File, Files
from headrace.storage.indexes.aborted_index import AbortedIndex
from headrace.storage.indexes.offset_index import OffsetIndex
from headrace.storage.indexes.time_index import TimeIndex
from headrace.storage.names import (
    ABORTED_INDEX_SUFFIX,
    DELETED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    segment_name,
)


class SegmentFiles:
    __slots__ = ("_mark", "aborted_index", "base_offset", "directory", "file", "files", "offset_index", "time_index")

    def __init__(
        self, files: Files, directory: str, base_offset: int, index_bytes: int, *, create: bool, mark: str
    ) -> None:
        self.files = files
        self.directory = directory
        self.base_offset = base_offset
        self._mark = mark  # suffix of the file names until the cleaner's segment is in place
        self.file: File = files.open(self._path(LOG_SUFFIX), create=create)
        self.offset_index = OffsetIndex(files, self._path(INDEX_SUFFIX), base_offset, index_bytes)
        self.time_index = TimeIndex(files, self._path(TIME_INDEX_SUFFIX), base_offset, index_bytes)
        self.aborted_index = AbortedIndex(files, self._path(ABORTED_INDEX_SUFFIX))

    def _path(self, suffix: str) -> str:
        return f"{self.directory}/{segment_name(self.base_offset, suffix)}{self._mark}"

    def modified_ms(self) -> int:
        return self.files.modified_ms(self.file.path)

    def files_to_sync(self) -> list[File]:
        """Return all files of a sealed segment, or only the log of the active one.

        The indexes of the active segment are rebuilt after a crash.
        """
        if not self.offset_index.sealed:
            return [self.file]
        aborted = self.aborted_index.file_to_sync()
        found = [self.file, self.offset_index.file_to_sync(), self.time_index.file_to_sync()]
        return found if aborted is None else [*found, aborted]

    def close(self) -> None:
        for part in (self.file, self.offset_index, self.time_index, self.aborted_index):
            part.close()

    def set_directory(self, directory: str) -> None:
        """Update the paths after the directory was renamed."""
        self.directory = directory
        self.file.path = self._path(LOG_SUFFIX)
        self.offset_index.set_path(self._path(INDEX_SUFFIX))
        self.time_index.set_path(self._path(TIME_INDEX_SUFFIX))
        self.aborted_index.set_path(self._path(ABORTED_INDEX_SUFFIX))

    def rename(self, mark: str) -> None:
        """Change the suffix of the file names to `mark`, the `.log` file first."""
        self._mark = mark
        self.file.move(self._path(LOG_SUFFIX))
        self.offset_index.move(self._path(INDEX_SUFFIX))
        self.time_index.move(self._path(TIME_INDEX_SUFFIX))
        self.aborted_index.move(self._path(ABORTED_INDEX_SUFFIX))

    def mark_deleted(self) -> None:
        """Rename the files so that the next start removes them; they stay readable."""
        for part in (self.file, self.offset_index, self.time_index, self.aborted_index):
            part.move(part.path + DELETED_SUFFIX)

    def delete(self) -> None:
        """Close and remove the files, marked as deleted or not.

        Any thread may call this once the segment is no longer in use.
        """
        self.close()
        for part in (self.file, self.offset_index, self.time_index, self.aborted_index):
            self.files.remove(part.path)

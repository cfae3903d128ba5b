"""What has to reach the disk before a log may move its recovery point: made by the owner of the log, run in any thread."""

from __future__ import annotations

from typing import NamedTuple

from headrace.storage.files import File, Files, write_atomically


def write_unsynced(files: Files, path: str, data: bytes) -> None:
    """The whole content of a small file; it outlives this process, but a power failure only once it is in a plan."""
    file = files.open(path, create=True)
    try:
        file.truncate(0)
        file.append(data)
    finally:
        file.close()


class SyncPlan(NamedTuple):
    """Everything below `offset` is on disk once `run` has returned."""

    offset: int
    generation: int  # of the log when the plan was made: a truncation since then makes the plan worthless
    files: Files
    open_files: list[File]
    paths: list[str]  # of files that are not open
    replacements: list[tuple[str, bytes]]  # small files to be replaced as a whole
    directories: list[str]  # with new names in them

    def run(self) -> None:
        """OSError: nobody knows what is on disk now; never try again, give the directory up."""
        for file in self.open_files:
            try:
                file.sync()
            except ValueError:  # closed in the meantime: its segment is gone, and the plan is worthless
                return
        for path in self.paths:
            try:
                file = self.files.open(path)
            except FileNotFoundError:
                continue
            try:
                file.sync()
            finally:
                file.close()
        for path, data in self.replacements:
            write_atomically(self.files, path, data)
        for directory in self.directories:
            self.files.sync_dir(directory)

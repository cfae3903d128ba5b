"""What has to reach the disk before a log may move its recovery point: made by the owner of the log, run in any thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from headrace.storage.files import DISK_FULL, STARVED, File, Files, write_atomically


class Unsynced(OSError):
    """The disk had no room for a small file, or the process no descriptor: nothing is lost, the plan can be made again later."""


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
        """Unsynced: make a new plan. Any other OSError: nobody knows what is on disk now; never try again, give the directory up."""
        for file in self.open_files:
            try:
                with _again_if(STARVED):
                    file.sync()
            except ValueError:  # closed in the meantime: its segment is gone, and nobody needs it on disk
                continue
        for path in self.paths:
            try:
                with _again_if(STARVED):
                    file = self.files.open(path)
            except FileNotFoundError:
                continue
            try:
                file.sync()
            finally:
                file.close()
        for path, data in self.replacements:
            with _again_if(STARVED | DISK_FULL):
                write_atomically(self.files, path, data)
        for directory in self.directories:
            with _again_if(STARVED):
                self.files.sync_dir(directory)


@contextmanager
def _again_if(passing: frozenset[int]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in passing:
            raise Unsynced(error.errno, error.strerror, error.filename) from error
        raise

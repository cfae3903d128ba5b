"""Sync plans: the files that must reach the disk before a log may move its recovery point.

The owner of the log makes the plan; any thread may run it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from headrace.storage.files import DISK_FULL, OUT_OF_RESOURCES, File, Files, write_atomically


class Unsynced(OSError):
    """A lack of disk space, descriptors or memory stopped a sync. No data is lost; a new plan can be made later."""


def write_unsynced(files: Files, path: str, data: bytes) -> None:
    """Replace the contents of a small file without syncing it.

    The file survives the end of this process, but it survives a power failure only after a plan has synced it.
    """
    file = files.open(path, create=True)
    try:
        file.truncate(0)
        file.append(data)
    finally:
        file.close()


class SyncPlan(NamedTuple):
    """What to sync for one log. Everything below `offset` is on disk once `run` has returned."""

    offset: int
    generation: int  # generation of the log when the plan was made; a later truncation invalidates the plan
    files: Files
    open_files: list[File]
    paths: list[str]  # paths of files that are not open
    replacements: list[tuple[str, bytes]]  # paths and contents of small files to replace atomically
    directories: list[str]  # directories with new or changed entries

    def run(self) -> None:
        """Sync the files, replace the small files and sync the directories.

        Raise Unsynced if a new plan can be made later. After any other OSError the contents of the disk are unknown:
        never retry, take the directory offline.
        """
        for file in self.open_files:
            try:
                with _as_unsynced_if(OUT_OF_RESOURCES):
                    file.sync()
            except ValueError:  # closed in the meantime: its segment was removed and need not reach the disk
                continue
        for path in self.paths:
            try:
                with _as_unsynced_if(OUT_OF_RESOURCES):
                    file = self.files.open(path)
            except FileNotFoundError:
                continue
            try:
                file.sync()
            finally:
                file.close()
        for path, data in self.replacements:
            with _as_unsynced_if(OUT_OF_RESOURCES | DISK_FULL):
                write_atomically(self.files, path, data)
        for directory in self.directories:
            with _as_unsynced_if(OUT_OF_RESOURCES):
                self.files.sync_dir(directory)


@contextmanager
def _as_unsynced_if(transient: frozenset[int]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in transient:
            raise Unsynced(error.errno, error.strerror, error.filename) from error
        raise

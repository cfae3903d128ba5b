"""Segments that left their log: renamed to `.deleted` at once, removed after `file.delete.delay.ms`.

The delay lets reads of the segments finish.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from headrace.storage.files import Files, is_passing
from headrace.storage.segment import Segment


class Doomed(NamedTuple):
    due_ms: int
    files: Files
    segments: Sequence[Segment]
    paths: Sequence[str]  # paths of the segments' producer snapshots

    def remove(self) -> None:
        """Remove the files. Call this in a thread: removing large files takes time."""
        for segment in self.segments:
            segment.delete()
        for path in self.paths:
            self.files.remove(path)


class DoomedSegments:
    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[Doomed] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, doomed: Doomed) -> None:
        self._waiting.append(doomed)
        for segment in doomed.segments:
            try:
                segment.mark_deleted()
            except OSError as error:
                # Without the new name a crash before the removal brings the segment back, which is harmless.
                if not is_passing(error):
                    raise

    def take(self, now_ms: int) -> list[Doomed]:
        """Return the segments that are due, for the caller to remove."""
        due = [doomed for doomed in self._waiting if doomed.due_ms <= now_ms]
        if due:
            self._waiting = deque(doomed for doomed in self._waiting if doomed.due_ms > now_ms)
        return due

    def close(self) -> None:
        """Close all files and leave their removal to the next start."""
        for doomed in self._waiting:
            for segment in doomed.segments:
                segment.close()
        self._waiting.clear()

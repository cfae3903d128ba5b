"""Segments that left their log: renamed to `.deleted` at once, removed after `file.delete.delay.ms`, when nobody reads them any more."""

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
    paths: Sequence[str]  # of their producer snapshots

    def remove(self) -> None:
        """In a thread: large files take their time to go."""
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
                # Without the new name it would come back with a crash before it is removed: no harm.
                if not is_passing(error):
                    raise

    def take(self, now_ms: int) -> list[Doomed]:
        """Those whose time has come; the caller removes them."""
        due = [doomed for doomed in self._waiting if doomed.due_ms <= now_ms]
        if due:
            self._waiting = deque(doomed for doomed in self._waiting if doomed.due_ms > now_ms)
        return due

    def close(self) -> None:
        """They are left to the next start."""
        for doomed in self._waiting:
            for segment in doomed.segments:
                segment.close()
        self._waiting.clear()

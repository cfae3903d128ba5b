"""Segments that left their log: renamed to `.deleted` at once, removed after `file.delete.delay.ms`.

The delay lets reads of the segments finish.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from headrace.storage.files import Files, is_transient
from headrace.storage.segments.segment import Segment


class DeletedSegments(NamedTuple):
    """Segments that left their log together, with the time at which their files may be removed."""

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


class DeletionQueue:
    """The deleted segments of one log whose files still exist."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[DeletedSegments] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, deleted: DeletedSegments) -> None:
        self._waiting.append(deleted)
        for segment in deleted.segments:
            try:
                segment.mark_deleted()
            except OSError as error:
                # Without the new name a crash before the removal brings the segment back, which is harmless.
                if not is_transient(error):
                    raise

    def take(self, now_ms: int) -> list[DeletedSegments]:
        """Return the segments that are due, for the caller to remove."""
        due = [deleted for deleted in self._waiting if deleted.due_ms <= now_ms]
        if due:
            self._waiting = deque(deleted for deleted in self._waiting if deleted.due_ms > now_ms)
        return due

    def close(self) -> None:
        """Close all files and leave their removal to the next start."""
        for deleted in self._waiting:
            for segment in deleted.segments:
                segment.close()
        self._waiting.clear()

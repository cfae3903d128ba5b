"""A limit on the lines of one kind that are logged per second, so that a client cannot fill the disk with refusals."""

from __future__ import annotations


class LogLimit:
    __slots__ = ("_lines", "_second", "_suppressed", "lines_per_second")

    def __init__(self, lines_per_second: int) -> None:
        self.lines_per_second = lines_per_second
        self._second = -1  # the second that `_lines` counts
        self._lines = 0
        self._suppressed = 0  # lines suppressed since the last allowed one

    def take(self, now_ms: int) -> int | None:
        """Return how many lines were suppressed since the last one, or None if this line must be suppressed too."""
        second = now_ms // 1000
        if second != self._second:
            self._second, self._lines = second, 0
        if self._lines >= self.lines_per_second:
            self._suppressed += 1
            return None
        self._lines += 1
        suppressed, self._suppressed = self._suppressed, 0
        return suppressed

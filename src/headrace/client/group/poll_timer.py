"""max.poll.interval.ms: how long a member may go without a poll before its partitions are reassigned."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class PollTimer:
    def __init__(self, interval_ms: int) -> None:
        self._interval_s = interval_ms / 1000
        self._last = float("-inf")
        self._inside = 0

    @contextmanager
    def polling(self) -> Iterator[None]:
        """Suspend the timer: a caller that waits inside a poll is not late."""
        self._inside += 1
        try:
            yield
        finally:
            self._inside -= 1
            self.polled()

    def polled(self) -> None:
        self._last = asyncio.get_running_loop().time()

    @property
    def left_s(self) -> float:
        if self._inside:
            return self._interval_s
        return max(0.0, self._last + self._interval_s - asyncio.get_running_loop().time())

    @property
    def is_over(self) -> bool:
        return self.left_s <= 0

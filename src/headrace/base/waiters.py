"""Responses that wait until an offset is reached (Kafka's "purgatory").

There is no clock here: the caller that parks a response also sets its timeout, and cancels the waiter when it fires.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable


class OffsetWaiter:
    __slots__ = ("cancelled", "offset", "on_lost", "on_passed", "order")

    def __init__(self, offset: int, order: int, on_passed: Callable[[], None], on_lost: Callable[[Exception], None]):
        self.offset = offset
        self.order = order
        self.on_passed = on_passed
        self.on_lost = on_lost
        self.cancelled = False

    def __lt__(self, other: OffsetWaiter) -> bool:
        return (self.offset, self.order) < (other.offset, other.order)


class OffsetWaiters:
    """A priority queue of waiters. Each fires once, in the order of offsets and then of arrival."""

    def __init__(self) -> None:
        self._heap: list[OffsetWaiter] = []
        self._order = 0
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    def add(self, offset: int, on_passed: Callable[[], None], on_lost: Callable[[Exception], None]) -> OffsetWaiter:
        self._order += 1
        waiter = OffsetWaiter(offset, self._order, on_passed, on_lost)
        heapq.heappush(self._heap, waiter)
        return waiter

    def cancel(self, waiter: OffsetWaiter) -> None:
        """Cancel the waiter, unless it has fired.

        Cancelled waiters are removed once they are more than half of the heap, so a call costs little on average.
        """
        if waiter.cancelled:
            return
        waiter.cancelled = True
        self._cancelled += 1
        if self._cancelled * 2 > len(self._heap):
            self._heap = [waiter for waiter in self._heap if not waiter.cancelled]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def advance(self, offset: int) -> None:
        """Fire all waiters for offsets up to and including this one."""
        while self._heap and self._heap[0].offset <= offset:
            waiter = heapq.heappop(self._heap)
            if waiter.cancelled:
                self._cancelled -= 1
            else:
                waiter.cancelled = True
                waiter.on_passed()

    def lose(self, reason: Exception) -> None:
        waiters, self._heap, self._cancelled = sorted(self._heap), [], 0
        for waiter in waiters:
            if not waiter.cancelled:
                waiter.cancelled = True
                waiter.on_lost(reason)

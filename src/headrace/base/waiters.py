"""Parked answers: what waits until an offset is passed, or until something happens to a key (Kafka's "purgatory").

No clock here: whoever parks an answer also arms its timeout, and cancels the waiter when it fires.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


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
    """Fires each waiter once, in the order of offsets and, at one offset, of arrival."""

    def __init__(self) -> None:
        self._heap: list[OffsetWaiter] = []
        self._order = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, offset: int, on_passed: Callable[[], None], on_lost: Callable[[Exception], None]) -> OffsetWaiter:
        self._order += 1
        waiter = OffsetWaiter(offset, self._order, on_passed, on_lost)
        heapq.heappush(self._heap, waiter)
        return waiter

    def advance(self, offset: int) -> None:
        """Everything that waits for an offset up to and including this one goes."""
        while self._heap and self._heap[0].offset <= offset:
            waiter = heapq.heappop(self._heap)
            if not waiter.cancelled:
                waiter.on_passed()

    def lose(self, reason: Exception) -> None:
        waiters, self._heap = sorted(self._heap), []
        for waiter in waiters:
            if not waiter.cancelled:
                waiter.on_lost(reason)


class KeyWaiters(Generic[K]):
    """Wakes whoever watches a key. A waiter is a plain callable; it is told once and must watch again if it wants more."""

    def __init__(self) -> None:
        self._by_key: dict[K, dict[Callable[[], None], None]] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def watch(self, key: K, wake: Callable[[], None]) -> None:
        self._by_key.setdefault(key, {})[wake] = None

    def forget(self, key: K, wake: Callable[[], None]) -> None:
        watchers = self._by_key.get(key)
        if watchers is not None:
            watchers.pop(wake, None)
            if not watchers:
                del self._by_key[key]

    def wake(self, key: K) -> None:
        watchers = self._by_key.pop(key, None)
        if watchers:
            for wake in watchers:
                wake()

"""The bytes of buffer.memory: callers take space for their records, and wait in turn when there is none."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from headrace.base.errors import ErrorCode, HeadraceError, KafkaError


class BufferFull(HeadraceError, TimeoutError):
    """No buffer space for a record within max.block.ms; nothing of it was sent."""


class BufferSpace:
    """Free and taken space of the buffer.

    `on_wait` is called when a caller begins to wait, so that queued batches are sent without lingering.
    """

    def __init__(self, total: int, on_wait: Callable[[], None]) -> None:
        self.total = total
        self.available = total
        self._on_wait = on_wait
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._closed: Exception | None = None

    @property
    def waiters(self) -> int:
        return len(self._waiting)

    def try_take(self, size: int) -> bool:
        """Take space without waiting; return False if there is too little or other callers are waiting."""
        if self._waiting or size > self.available or self._closed is not None:
            return False
        self.available -= size
        return True

    async def take(self, size: int, timeout_s: float) -> None:
        if self._closed is not None:
            raise self._closed
        if size > self.total:
            raise KafkaError(
                ErrorCode.MESSAGE_TOO_LARGE, f"{size} bytes are more than buffer.memory has in all, {self.total}"
            )
        if self.try_take(size):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = size, future
        self._waiting.append(waiting)
        self._on_wait()
        try:
            async with asyncio.timeout(timeout_s):
                await future
        except (TimeoutError, asyncio.CancelledError) as error:
            if future.done() and not future.cancelled() and future.exception() is None:
                self.give(size)  # granted, but too late
            elif waiting in self._waiting:
                self._waiting.remove(waiting)
                self._serve()  # the next waiting callers may fit now
            if isinstance(error, asyncio.CancelledError):
                raise
            free = f"{self.available} of {self.total} bytes are free (buffer.memory)"
            raise BufferFull(f"no space for {size} bytes within {timeout_s:g} s (max.block.ms): {free}") from error

    def give(self, size: int) -> None:
        self.available += size
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self._waiting[0][0] <= self.available:
            size, future = self._waiting.popleft()
            if not future.done():
                self.available -= size
                future.set_result(None)

    def close(self, error: Exception) -> None:
        """Refuse all further requests for space; callers that wait get the error."""
        self._closed = error
        waiting, self._waiting = self._waiting, deque()
        for _, future in waiting:
            if not future.done():
                future.set_exception(error)

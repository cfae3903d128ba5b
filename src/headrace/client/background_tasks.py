"""Runs slow work in background tasks, each name once at a time, and wakes a loop when one is done."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from headrace.client.retry import Backoff
from headrace.client.tasks import end_tasks

NEVER = float("inf")


class BackgroundTasks:
    """Named background tasks; a task that failed is started again only after a growing pause."""

    def __init__(self, backoff: Backoff, *, random: Random, now: Callable[[], float], wake: Callable[[], None]) -> None:
        self._backoff = backoff
        self._random = random
        self._now = now
        self._wake = wake
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._failures: dict[str, int] = {}
        self._not_before: dict[str, float] = {}

    def start(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        assert name not in self._tasks, name

        async def run() -> None:
            try:
                await work()
            finally:
                del self._tasks[name]
                self._wake()

        self._tasks[name] = asyncio.get_running_loop().create_task(run())

    def start_once(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> float:
        """Start the work unless it is running or delayed; return when the delay ends, else NEVER."""
        if name in self._tasks:
            return NEVER
        not_before = self._not_before.get(name, 0.0)
        if self._now() < not_before:
            return not_before
        self.start(name, work)
        return NEVER

    def delay(self, name: str, failed: bool) -> None:
        """Delay the next run; the delay grows with each failure in a row."""
        self._failures[name] = failures = self._failures.get(name, 0) + 1 if failed else 0
        self._not_before[name] = self._now() + self._backoff.pause_s(max(1, failures), self._random)

    async def stop(self) -> None:
        if self._tasks:
            await end_tasks(self._tasks.values())

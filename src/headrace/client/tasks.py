"""Ends a client's background tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

AGAIN_S = 0.5


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel the tasks and wait until they have ended, ignoring what they raise."""
    ending = list(tasks)
    while running := [task for task in ending if not task.done()]:
        for task in running:
            task.cancel()  # repeated: wait_for in Python 3.11 can swallow it if its awaitable ends at the same time
        await asyncio.wait(running, timeout=AGAIN_S)
    for task in ending:
        if not task.cancelled():
            task.exception()

"""Ending tasks that run beside a client."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

AGAIN_S = 0.5


async def end_tasks(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Returns when they have ended; what they raised is nobody's concern any more."""
    ending = list(tasks)
    while running := [task for task in ending if not task.done()]:
        for task in running:
            task.cancel()  # not once: Python 3.11's wait_for can swallow it (when what it waits for ends at the same time)
        await asyncio.wait(running, timeout=AGAIN_S)
    for task in ending:
        if not task.cancelled():
            task.exception()

"""A thread with an event loop for blocking callers, and per-process instances that a forked child creates anew."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from headrace.base.errors import HeadraceError
from headrace.client.tasks import end_tasks

T = TypeVar("T")
Has = TypeVar("Has", bound="LoopThread")


class LoopThread:
    def __init__(self, name: str) -> None:
        self._process_id = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def close(self) -> None:
        """End all tasks, the thread and the loop; for threads that do not live as long as the process."""

        async def end_all() -> None:
            await end_tasks([task for task in asyncio.all_tasks() if task is not asyncio.current_task()])
            await self.loop.shutdown_default_executor()

        asyncio.run_coroutine_threadsafe(end_all(), self.loop).result()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    # --- from other threads

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        self.check()
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    @property
    def is_here(self) -> bool:
        return self._process_id == os.getpid()

    def check(self) -> None:
        if not self.is_here:
            raise HeadraceError("this client was made by another process, before a fork; make one here")

    def do(self, work: Coroutine[Any, Any, T], meanwhile: Callable[[Future[T]], None] | None = None) -> T:
        """Run `work` in the loop and return its result; an interrupt cancels the work.

        `meanwhile` is called with the future first; it returns when this thread has nothing left to do.
        """
        if threading.current_thread() is self._thread:
            work.close()
            raise HeadraceError("the thread of the event loop cannot wait for itself: use the asyncio client there")
        future = self.start(work)
        try:
            if meanwhile is not None:
                meanwhile(future)
            return future.result()
        except BaseException:
            future.cancel()
            raise


class OneForEachProcess(Generic[Has]):
    """Creates one instance per process, on first use.

    A forked child has none of its parent's threads, and must not use its connections.
    """

    def __init__(self, make: Callable[[], Has]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: Has | None = None
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._after_fork)

    def __call__(self) -> Has:
        with self._lock:
            if self._made is None or not self._made.is_here:
                self._made = self._make()
            return self._made

    def _after_fork(self) -> None:
        """Replace the lock, which a thread that does not exist here may have held."""
        self._lock = threading.Lock()

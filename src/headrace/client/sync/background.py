"""One thread with an event loop per process, shared by all blocking clients.

A forked child has none of its parent's threads, so it creates its own loop and cannot use its parent's clients. Clients
still open at interpreter exit are closed then, within EXIT_S_MAX.
"""

from __future__ import annotations

import asyncio
import atexit
import queue
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from headrace.base.errors import HeadraceError
from headrace.client.sync.loop_thread import LoopThread, OneForEachProcess

T = TypeVar("T")

EXIT_S_MAX = 10.0

# Functions to run in a thread that waits for the loop; None ends the wait.
Calls = queue.SimpleQueue[Callable[[], None] | None]


class Background(LoopThread):
    def __init__(self) -> None:
        super().__init__("headrace-client")
        self._open: dict[int, tuple[str, Callable[[], Coroutine[Any, Any, None]]]] = {}
        # Before atexit if possible: the executors used for compression are shut down in between.
        getattr(threading, "_register_atexit", atexit.register)(self.close_all)

    def do_and_call(self, work: Coroutine[Any, Any, T], calls: Calls) -> T:
        """Run `work` like `do`, and run `calls` in this thread meanwhile."""

        def meanwhile(future: Future[T]) -> None:
            future.add_done_callback(lambda _: calls.put(None))
            while (call := calls.get()) is not None:
                call()

        return self.do(work, meanwhile)

    def call(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Call a function in the loop's thread."""

        async def work() -> T:
            return function(*arguments, **named)

        return self.do(work())

    # --- open clients

    def opened(self, client: object, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Register an open client until `closed`; if it is garbage-collected before, it is closed then.

        `close` must not refer to the client.
        """
        self._open[id(client)] = type(client).__name__, close
        weakref.finalize(client, self._forgotten, id(client)).atexit = False

    def closed(self, client: object) -> None:
        self._open.pop(id(client), None)

    def _forgotten(self, key: int) -> None:
        found = self._open.pop(key, None)
        if found is not None and self.is_here and self.loop.is_running():
            name, close = found
            warnings.warn(f"a {name} was not closed", ResourceWarning, stacklevel=2)
            asyncio.run_coroutine_threadsafe(close(), self.loop)

    def close_all(self) -> None:
        """Close all clients at interpreter exit, while threads can still be started."""
        if not self.is_here or not self._open:
            return
        closers = [close for _, close in self._open.values()]
        self._open.clear()

        async def work() -> None:
            await asyncio.wait([asyncio.ensure_future(close()) for close in closers], timeout=EXIT_S_MAX)

        with suppress(Exception):
            asyncio.run_coroutine_threadsafe(work(), self.loop).result(EXIT_S_MAX)


def passed_on(future: asyncio.Future[T]) -> Future[T]:
    """Return a `concurrent.futures.Future` with the outcome of `future`. Call this in the loop's thread."""
    outside: Future[T] = Future()
    pass_on(future, outside)
    return outside


def pass_on(future: asyncio.Future[T], outside: Future[T]) -> None:
    def done(inside: asyncio.Future[T]) -> None:
        if not outside.set_running_or_notify_cancel():
            return
        error = CancelledInside() if inside.cancelled() else inside.exception()
        if error is not None:
            outside.set_exception(error)
        else:
            outside.set_result(inside.result())

    future.add_done_callback(done)


class CancelledInside(HeadraceError):
    def __init__(self) -> None:
        super().__init__("it was given up, as the client was closed")


background = OneForEachProcess(Background)

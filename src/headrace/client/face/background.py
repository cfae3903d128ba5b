"""One thread with an event loop for each process: all synchronous clients of the process work there.

A child of a fork has none of its parent's threads, so it makes a loop of its own, and cannot use its parent's clients. Clients that are
still open when the interpreter ends are closed then, as far as that is done within EXIT_S_MAX.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import queue
import threading
import warnings
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from headrace.base.errors import HeadraceError

T = TypeVar("T")

EXIT_S_MAX = 10.0

# What a thread that waits for the loop is asked to do meanwhile; None: it need not wait any longer.
Calls = queue.SimpleQueue[Callable[[], None] | None]


class Background:
    def __init__(self) -> None:
        self.process_id = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._open: dict[int, tuple[str, Callable[[], Coroutine[Any, Any, None]]]] = {}
        self._thread = threading.Thread(target=self._run, name="headrace-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    # --- from other threads

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        self.check()
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    @property
    def is_here(self) -> bool:
        return self.process_id == os.getpid()

    def check(self) -> None:
        if not self.is_here:
            raise HeadraceError("this client was made by another process, before a fork; make one here")

    def do(self, work: Coroutine[Any, Any, T], calls: Calls | None = None) -> T:
        """Waits for it, and can be interrupted: then the work is given up, too. `calls` are done meanwhile, by this thread."""
        if threading.current_thread() is self._thread:
            work.close()
            raise HeadraceError("the thread of the event loop cannot wait for itself: use the asyncio client there")
        future = self.start(work)
        try:
            if calls is not None:
                future.add_done_callback(lambda _: calls.put(None))
                while (call := calls.get()) is not None:
                    call()
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """A function, in the loop's thread."""

        async def work() -> T:
            return function(*arguments, **named)

        return self.do(work())

    # --- clients that are open

    def opened(self, client: object, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Until `closed`; a client that is forgotten instead is closed when it is collected, so `close` must not know it."""
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
        """At the end of the interpreter, as long as threads can still be started."""
        if not self.is_here or not self._open:
            return
        closers = [close for _, close in self._open.values()]
        self._open.clear()

        async def work() -> None:
            await asyncio.wait([asyncio.ensure_future(close()) for close in closers], timeout=EXIT_S_MAX)

        with suppress(Exception):
            asyncio.run_coroutine_threadsafe(work(), self.loop).result(EXIT_S_MAX)


def passed_on(future: asyncio.Future[T]) -> Future[T]:
    """To be called in the loop's thread; what it becomes can be waited for in any."""
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


_lock = threading.Lock()
_background: Background | None = None


def background() -> Background:
    """The one of this process."""
    global _background
    with _lock:
        if _background is None or not _background.is_here:
            _background = Background()
            # Before atexit if that can be had: the executors that compress are shut down between the two.
            getattr(threading, "_register_atexit", atexit.register)(_background.close_all)
        return _background


def _after_fork() -> None:
    """The lock may have been held by a thread that is not here."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)

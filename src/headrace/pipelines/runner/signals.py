"""SIGTERM and SIGINT while a driver runs: the first signal stops it cleanly, the second one exits at once."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def _handled(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Install the handler, if called in the main thread; other threads cannot set handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, one in before.items():
            signal.signal(number, one)


@contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt on a signal: before Spark has started, there is nothing to stop cleanly."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    with _handled(interrupt):
        yield


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on the first signal and exit on the second. Use AFTER Spark has started, which sets its own handler."""
    is_interrupted = False

    def handle(number: int, frame: Any) -> None:
        nonlocal is_interrupted
        if is_interrupted:
            os._exit(128 + number)
        is_interrupted = True
        stop()

    with _handled(handle):
        yield

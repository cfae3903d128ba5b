"""SIGTERM and SIGINT while a driver runs: whoever asks once gets a clean end, whoever asks twice does not want to wait."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def _handled(handler: Callable[[int, Any], None]) -> Iterator[None]:
    """Where they can be: in the main thread."""
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
    """As long as Spark is not started there is nothing to be stopped: whatever is being done ends at once."""

    def interrupt(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    with _handled(interrupt):
        yield


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """AFTER Spark is started, as it sets a handler of its own."""
    asked = False

    def handle(number: int, frame: Any) -> None:
        nonlocal asked
        if asked:
            os._exit(128 + number)
        asked = True
        stop()

    with _handled(handle):
        yield

"""Work for the end of a turn: after the handling of all events that one poll of the listeners' sockets has found.

Appends of one turn are sent to followers and consumers together, and so are the responses to a client. With `call_soon` this work
would cost another iteration of the event loop, which takes as long as a small request.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable
from weakref import WeakKeyDictionary

log = logging.getLogger(__name__)

ROUNDS_MAX = 4  # callbacks may add others; what the last round adds is left to the next iteration of the loop


class TurnEnd:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)  # the table below must not keep closed loops
        self._callbacks: list[Callable[[], object]] = []
        self._within = False  # whether a turn is under way

    def begin(self) -> None:
        """Begin a turn, which `end` ends."""
        self._within = True

    def call(self, callback: Callable[[], object]) -> None:
        """Call back at the end of the turn, or in the next iteration of the loop if none is under way."""
        if self._within:
            self._callbacks.append(callback)
        else:
            self._call_soon(callback)

    def _call_soon(self, callback: Callable[[], object]) -> None:
        loop = self._loop()
        assert loop is not None, "a loop that runs is referred to"
        loop.call_soon(callback)

    def end(self) -> None:
        try:
            for _ in range(ROUNDS_MAX):
                if not self._callbacks:
                    break
                callbacks, self._callbacks = self._callbacks, []
                for callback in callbacks:
                    try:
                        callback()
                    except Exception:  # the work of other requests goes on
                        log.exception("work at the end of a turn failed")
        finally:
            self._within = False
            left, self._callbacks = self._callbacks, []
            for callback in left:
                self._call_soon(callback)


_ENDS: WeakKeyDictionary[asyncio.AbstractEventLoop, TurnEnd] = WeakKeyDictionary()


def turn_end_of(loop: asyncio.AbstractEventLoop) -> TurnEnd:
    """Return the one of this event loop."""
    end = _ENDS.get(loop)
    if end is None:
        end = _ENDS[loop] = TurnEnd(loop)
    return end

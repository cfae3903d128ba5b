"""A selector that polls briefly before it blocks, as long as events arrive in quick succession.

Waking up costs tens of microseconds, in a virtual machine more than handling a small request. So after a short wait the next one
starts by polling. An idle node does not poll; it blocks.
"""

from __future__ import annotations

import os
import selectors
from time import perf_counter

LOOK_S = 50e-6

Ready = list[tuple[selectors.SelectorKey, int]]


class EagerSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self._eager = False
        # With one processor, the process we wait for could not run while we poll.
        self._look_s = LOOK_S if (os.cpu_count() or 1) > 1 else 0.0

    def select(self, timeout: float | None = None) -> Ready:
        if timeout is not None and timeout <= 0:
            return super().select(0)
        began = perf_counter()
        if self._eager:
            deadline = began + (self._look_s if timeout is None else min(self._look_s, timeout))
            while perf_counter() < deadline:
                ready = super().select(0)
                if ready:
                    return ready
        ready = super().select(timeout)
        self._eager = perf_counter() - began < 2 * self._look_s
        return ready

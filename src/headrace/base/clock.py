"""The wall clock as a port: shells ask a Clock, so that the simulator can own time."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since 1970; may jump, so never measure spans with it (the event loop's time() does that)."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

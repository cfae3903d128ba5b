"""The wall clock as a port: shells read the time from a Clock, so that the simulator can control it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_ms(self) -> int:
        """Return milliseconds since 1970. They may jump: measure durations with the event loop's time() instead."""


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

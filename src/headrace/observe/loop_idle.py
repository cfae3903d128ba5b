"""The idle share of the event loop for /metrics, under the names of Kafka's thread pools.

One thread does the work of Kafka's network threads and request handlers, so both metrics have the same value.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from headrace.observe.text_format import family

SAMPLE_S_MIN = 1.0
_NAMES = {
    "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent": "Idle share of the event loop's thread, 0 to 1.",
    "kafka_network_socketserver_networkprocessoravgidle_percent": "Idle share of the event loop's thread, 0 to 1.",
}


class LoopIdle:
    """A page of /metrics, which must be read on the thread that it measures."""

    def __init__(self) -> None:
        self._sampled_at = time.monotonic()
        self._busy_s = time.thread_time()
        self._idle = 1.0

    def expose(self) -> Iterator[bytes]:
        now, busy_s = time.monotonic(), time.thread_time()
        if now - self._sampled_at >= SAMPLE_S_MIN:
            self._idle = max(0.0, 1.0 - (busy_s - self._busy_s) / (now - self._sampled_at))
            self._sampled_at, self._busy_s = now, busy_s
        for name, help in _NAMES.items():
            yield from family(name, help, "gauge", [("", round(self._idle, 4))])

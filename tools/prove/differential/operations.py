"""The structure of an operation, and the state of both servers according to Kafka's responses."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from tools.prove.differential.deviations import Deviation
from tools.prove.differential.wire import Target

Place = tuple[str, int]

# Records with old timestamps must not be deleted, because they are compared.
KEEP = {"retention.ms": "-1"}
HOUR_MS = 3_600_000
TOPICS: dict[str, tuple[int, dict[str, str]]] = {
    "plain": (4, KEEP),
    "compact": (1, {**KEEP, "cleanup.policy": "compact"}),
    "append-time": (1, {**KEEP, "message.timestamp.type": "LogAppendTime"}),
    "small": (1, {**KEEP, "max.message.bytes": "2000"}),
    "segments": (2, {**KEEP, "segment.bytes": str(1 << 20), "index.interval.bytes": "1000"}),
    "window": (1, {**KEEP, "message.timestamp.before.max.ms": str(HOUR_MS)}),
    "deviations": (2, KEEP),
}
PLACES: tuple[Place, ...] = tuple(
    (topic, index) for topic, (count, _) in TOPICS.items() if topic != "deviations" for index in range(count)
)
UNKNOWN_PLACES: tuple[Place, ...] = (("unknown", 0), ("plain", 99), ("plain", -1), ("plain", 2**31 - 1))


@dataclass
class Operation:
    """One operation. `build` makes the request for one server, with that server's topic ids and sessions."""

    name: str
    build: Callable[[Target], tuple[Any, int]]
    has_response: bool = True
    session: str | None = None
    deviation: Deviation | None = None
    learn: Callable[[Any], None] = lambda response: None  # called with Kafka's response in plain values


@dataclass
class Model:
    """The state according to Kafka's responses so far."""

    random: Random
    now_ms: int = field(default_factory=lambda: time.time_ns() // 1_000_000)
    ends: dict[Place, int] = field(default_factory=lambda: dict.fromkeys(PLACES, 0))

    def place(self) -> Place:
        return self.random.choice(PLACES)

    def offset(self, place: Place) -> int:
        """Return mostly an existing offset, often in the middle of a batch, and sometimes one that does not exist."""
        end = self.ends.get(place, 0)
        random = self.random
        if random.random() < 0.8:
            return random.randrange(end + 1)
        return random.choice((end, end + 1, end + 1000, -1, -2, -100, 0, 2**62))

    def appended(self, place: Place, base_offset: int, count: int) -> None:
        self.ends[place] = max(self.ends[place], base_offset + count)

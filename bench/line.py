"""What a line of the benchmark is: something done to a contestant, the figures that come of it, and what they should be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bench.contestants import Contestant
from bench.load import Span
from bench.native import WORK

KIB = 1024
IN_FLIGHT = 5  # max.in.flight.requests.per.connection of Kafka's producer
RECORDS_PER_EVENT = 25  # for one event of the shop, so many records of 100 B are read elsewhere
WARM_SHARE = 0.15  # of a round's time goes before it, uncounted


@dataclass(frozen=True)
class Figure:
    """One number of a line. Goals are ratios to the other side; for `goal_absolute` the number itself is judged."""

    key: str
    title: str
    more_is_better: bool
    goal: float | None = None
    ceiling_goal: float | None = None
    goal_absolute: float | None = None
    digits: int = 0


@dataclass(frozen=True)
class Options:
    seconds: float = 3.0
    work: Path = WORK
    bytes_max: int = 0  # written by one round; 0: no bound
    fetch_bytes: int = 256 * 1024 * 1024  # to be fetched: more than a processor's cache, far less than memory
    filler_bytes_max: int = 40 * 10**9  # written by the line `loop`
    loop_topics: int = 10
    loop_partitions: int = 1000
    connections: int = 1000  # of the lines about many of them
    idle_seconds: float = 6.0  # so long nothing is asked: both look after their checkpoints at least every 5 s
    open_partitions: int = 4  # of the line `open-50g`
    open_segments: int = 12  # sealed ones, for each of them
    open_active_bytes: int = 256 * 1024 * 1024  # in the segment behind those, of each

    compaction_records: int = 5_000_000
    group_members: int = 200  # of the lines about a large group
    group_partitions: int = 500
    group_deaths: int = 10
    committed_offsets: int = 1_000_000  # in one shard
    records: int = 10_000_000  # of 100 bytes that clients and Spark read; of 1 KB a tenth as many
    shop_rate: int = 1000  # events a second, where they come while queries run
    shop_seconds: float = 40.0  # for so long
    shop_warm_seconds: float = 10.0  # of them, which do not count
    main_job_seconds: float = 60.0  # after its first result its memory is looked at

    @property
    def shop_events(self) -> int:
        """That queries find in their topics; whole thousands, so that partitions are equally long."""
        return max(1, self.records // RECORDS_PER_EVENT // 1000) * 1000

    @property
    def span(self) -> Span:
        return Span(self.seconds, self.seconds * WARM_SHARE, self.bytes_max)


@dataclass(frozen=True)
class Measured:
    figures: dict[str, float]
    detail: Mapping[str, object] = field(default_factory=dict)


class Line(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def figures(self) -> tuple[Figure, ...]: ...
    @property
    def against(self) -> tuple[str, ...]:
        """Besides Headrace."""

    @property
    def alone(self) -> bool:
        """No other server may run meanwhile, not even idle; the line starts its own."""

    @property
    def warm_rounds(self) -> int:
        """The first so many do not count."""

    def measure(self, contestant: Contestant, topic: str, options: Options) -> Measured: ...

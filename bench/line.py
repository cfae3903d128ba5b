"""A line of the benchmark: one workload, measured on several systems, and its figures with their goals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from bench.load.generator import Span
from bench.paths import WORK
from bench.systems.servers import System

RECORDS_PER_EVENT = 25  # for each shop event, other lines read this many records of 100 B
WARM_SHARE = 0.15  # duration of the warm-up before a round, as a share of the round


@dataclass(frozen=True)
class Figure:
    """One number of a line. Goals are ratios to the baseline; `goal_absolute` applies to the number itself."""

    key: str
    title: str
    more_is_better: bool
    goal: float | None = None
    ceiling_goal: float | None = None
    goal_absolute: float | None = None
    digits: int = 0


@dataclass(frozen=True)
class Options:
    """The size of the workloads."""

    seconds: float = 3.0
    work: Path = WORK
    bytes_max: int = 0  # maximum bytes written per round; 0 means unlimited
    fetch_bytes: int = 256 * 1024 * 1024  # bytes to fetch: more than a processor's cache, far less than memory
    filler_bytes_max: int = 40 * 10**9  # maximum bytes written by the line `loop`
    loop_topics: int = 10
    loop_partitions: int = 1000
    cluster_topics: int = 1000  # topics of one line about clusters, and partitions of another
    connections: int = 1000  # connections of the lines about many of them
    idle_seconds: float = 6.0  # idle time; both servers check their checkpoints at least every 5 s
    open_partitions: int = 4  # partitions of the line `open-50g`
    open_segments: int = 12  # sealed segments per partition
    open_active_bytes: int = 256 * 1024 * 1024  # size of the active segment of each partition

    compaction_records: int = 5_000_000
    group_members: int = 200  # members of the lines about a large group
    group_partitions: int = 500
    group_deaths: int = 10
    committed_offsets: int = 1_000_000  # offsets in one shard
    records: int = 10_000_000  # records of 100 bytes that clients and Spark read; a tenth as many for 1 KB
    shop_rate: int = 1000  # events per second that arrive while queries run
    shop_seconds: float = 40.0  # how long events arrive
    shop_warm_seconds: float = 10.0  # part of shop_seconds that does not count
    demo_seconds: float = 60.0  # delay between the demo's first result and its memory measurement

    @property
    def shop_events(self) -> int:
        """Number of events in the queries' input topics, in whole thousands so that partitions are equally long."""
        return max(1, self.records // RECORDS_PER_EVENT // 1000) * 1000

    @property
    def span(self) -> Span:
        return Span(self.seconds, self.seconds * WARM_SHARE, self.bytes_max)


@dataclass(frozen=True)
class Measurement:
    """The figures of one round, and further values that only the JSON file contains."""

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
        """Return the names of the systems that Headrace is compared with."""

    @property
    def alone(self) -> bool:
        """Whether no other server may run at the same time, not even idle; the line then starts its own."""

    @property
    def warm_rounds(self) -> int:
        """Number of initial rounds that do not count."""

    def measure(self, system: System, topic: str, options: Options) -> Measurement: ...

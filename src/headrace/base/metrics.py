"""Counters and histograms cheap enough for every request; `headrace.observe` exports them to Prometheus.

A counter is an object with a public integer: `counter.value += 1` costs 30 ns; a lock and a label look-up would cost 1 µs.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator

from msgspec import Struct, field

# Upper bounds in seconds, from a quarter of a typical request's duration to the longest wait for a response.
LATENCY_BUCKETS = (
    0.00002, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 30.0,
)  # fmt: skip

RATE_WINDOW_S = 30.0

Labels = tuple[tuple[str, str], ...]


class Counter:
    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0


class Histogram:
    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = LATENCY_BUCKETS) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self.counts)

    def quantile(self, share: float) -> float:
        """Return the upper bound of the bucket that holds the quantile `share`; 0 if there are no observations."""
        requested, seen = share * self.count, 0
        for count, bound in zip(self.counts, (*self.bounds, float("inf")), strict=True):
            seen += count
            if seen and seen >= requested:
                return bound
        return 0.0


class RecentRate:
    """The rate of a counter per second over the last 30 to 60 seconds, if it is read at least every 30 seconds."""

    __slots__ = ("_base", "_counter", "_next", "_now")

    def __init__(self, counter: Counter, now: Callable[[], float]) -> None:
        self._counter = counter
        self._now = now
        self._base = self._next = (now(), counter.value)

    def __call__(self) -> float:
        now, value = self._now(), self._counter.value
        if now - self._next[0] >= RATE_WINDOW_S:
            self._base, self._next = self._next, (now, value)
        since, count = self._base
        return (value - count) / (now - since) if now > since else 0.0


Metric = Counter | Histogram | Callable[[], float]


class Family(Struct):
    """All metrics of one name, by their labels. `kind` is counter, histogram or gauge."""

    name: str
    help: str
    kind: str
    is_exported: bool = True  # False: absent from /metrics, only read by other code
    members: dict[Labels, Metric] = field(default_factory=dict)


class Metrics:
    """The metrics registry of one node; the same name and labels always return the same object."""

    def __init__(self) -> None:
        self._families: dict[str, Family] = {}
        # Sources of metrics that are already in Prometheus' text format, in chunks.
        self.texts: list[Callable[[], Iterator[bytes]]] = []

    def __iter__(self) -> Iterator[Family]:
        return iter(list(self._families.values()))

    def counter(self, name: str, help: str, **labels: str) -> Counter:
        metric = self._member(name, help, "counter", labels, Counter)
        assert isinstance(metric, Counter)
        return metric

    def histogram(self, name: str, help: str, bounds: tuple[float, ...] = LATENCY_BUCKETS, **labels: str) -> Histogram:
        metric = self._member(name, help, "histogram", labels, lambda: Histogram(bounds))
        assert isinstance(metric, Histogram)
        return metric

    def hide(self, name: str) -> None:
        """Keep the metrics of this name off /metrics."""
        self._families[name].is_exported = False

    def gauge(self, name: str, help: str, read: Callable[[], float], **labels: str) -> None:
        self._member(name, help, "gauge", labels, lambda: read)

    def members(self, name: str) -> dict[Labels, Metric]:
        """Return the metrics of one name by their labels; empty if there are none."""
        family = self._families.get(name)
        return {} if family is None else family.members

    def _member(self, name: str, help: str, kind: str, labels: dict[str, str], make: Callable[[], Metric]) -> Metric:
        family = self._families.setdefault(name, Family(name, help, kind))
        assert family.kind == kind, f"{name} is a {family.kind}, not a {kind}"
        key = tuple(sorted(labels.items()))
        if key not in family.members:
            family.members[key] = make()
        return family.members[key]

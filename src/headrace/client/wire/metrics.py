"""Client metrics with Kafka's names: totals, and rates, averages and maxima over the last samples.

    sent = metrics.sensor("record-send", "rate", "total")
    sent.record(500)
    metrics.read()["record-send-rate"]

A sensor costs a few additions: record once per batch or request, not once per record.
"""

from __future__ import annotations

from collections.abc import Callable
from math import nan

WINDOW_S = 30.0  # metrics.sample.window.ms
SAMPLES = 2  # metrics.num.samples
KINDS = ("rate", "total", "avg", "max")


class _Sample:
    __slots__ = ("count", "max", "start", "sum")

    def __init__(self, start: float) -> None:
        self.start = start
        self.sum = 0.0
        self.count = 0
        self.max = nan


class Sensor:
    """Records values; the kinds it is created with are reported."""

    __slots__ = ("_now", "_samples", "total")

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._samples = [_Sample(now())]
        self.total = 0.0

    def record(self, value: float = 1.0, times: int = 1) -> None:
        """Record `times` values whose sum is `value`: the average is over all of them, the maximum takes their mean."""
        now = self._now()
        sample = self._samples[-1]
        if now - sample.start >= WINDOW_S:
            sample = self._next_sample(now)
        self.total += value
        sample.sum += value
        sample.count += times
        largest = value if times == 1 else value / times
        if not sample.max >= largest:  # also if max is still NaN
            sample.max = largest

    def _next_sample(self, now: float) -> _Sample:
        sample = _Sample(now)
        self._samples = [*self._samples[1 - SAMPLES :], sample]
        return sample

    def _recent(self, now: float) -> list[_Sample]:
        return [sample for sample in self._samples if now - sample.start < WINDOW_S * SAMPLES]

    def read(self, kind: str) -> float:
        now = self._now()
        samples = self._recent(now)
        if kind == "total":
            return self.total
        if kind == "rate":
            return sum(sample.sum for sample in samples) / self._elapsed(samples, now)
        if kind == "avg":
            count = sum(sample.count for sample in samples)
            return sum(sample.sum for sample in samples) / count if count else nan
        return max((sample.max for sample in samples if sample.count), default=nan)

    @staticmethod
    def _elapsed(samples: list[_Sample], now: float) -> float:
        """Return the time span of the samples, at least one window as in Kafka: a new client reports no huge rates."""
        elapsed = now - samples[0].start if samples else WINDOW_S
        return max(elapsed, WINDOW_S * (SAMPLES - 1))


class Metrics:
    """The metrics of one client; `now` returns monotonic seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._read: dict[str, Callable[[], float]] = {}

    def sensor(self, name: str, *kinds: str) -> Sensor:
        """Create a sensor, reported as `name-kind` for each kind: rate, total, avg, max."""
        assert kinds and set(kinds) <= set(KINDS)
        sensor = Sensor(self._now)
        for kind in kinds:
            self._read[f"{name}-{kind}"] = lambda kind=kind: sensor.read(kind)  # type: ignore[misc]
        return sensor

    def gauge(self, name: str, read: Callable[[], float]) -> None:
        """Add a value that is looked up when metrics are read."""
        self._read[name] = read

    def read(self) -> dict[str, float]:
        return {name: read() for name, read in sorted(self._read.items())}

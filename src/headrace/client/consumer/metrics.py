"""The metrics of a consumer, with Kafka's names."""

from __future__ import annotations

from collections.abc import Callable

from headrace.client.consumer.positions import Positions
from headrace.client.wire.metrics import Metrics


class ConsumerSensors:
    """Sensors of a consumer, recorded once per fetch, poll or commit, never per record.

    Times are in milliseconds, as in Kafka.
    """

    def __init__(self, now: Callable[[], float], positions: Positions) -> None:
        self.metrics = metrics = Metrics(now)
        self._now = now
        self._positions = positions
        self._polled_at: float | None = None
        self.fetches = metrics.sensor("fetch", "rate", "total")
        self.fetch_latency = metrics.sensor("fetch-latency", "avg", "max")
        self.fetch_size = metrics.sensor("fetch-size", "avg", "max")
        self.bytes = metrics.sensor("bytes-consumed", "rate", "total")
        self.records = metrics.sensor("records-consumed", "rate", "total")
        self.records_per_request = metrics.sensor("records-per-request", "avg")
        self.lag = metrics.sensor("records-lag", "max")
        self.commits = metrics.sensor("commit", "rate", "total")
        self.commit_latency = metrics.sensor("commit-latency", "avg", "max")
        self.rebalances = metrics.sensor("rebalance", "total")
        self.between_polls = metrics.sensor("time-between-poll", "avg", "max")
        metrics.gauge("assigned-partitions", lambda: float(len(positions.items())))
        metrics.gauge("last-poll-seconds-ago", self._since_poll)

    def polled(self) -> None:
        now = self._now()
        if self._polled_at is not None:
            self.between_polls.record((now - self._polled_at) * 1000)
        self._polled_at = now

    def _since_poll(self) -> float:
        return -1.0 if self._polled_at is None else self._now() - self._polled_at

    def read(self) -> dict[str, float]:
        """Return all metrics; the lag of a single partition is `topic-partition.records-lag`."""
        found = self.metrics.read()
        for partition, position in self._positions.items():
            if position.lag is not None:
                found[f"{partition}.records-lag"] = float(position.lag)
        return found

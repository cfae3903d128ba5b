"""The sensors of a producer, with Kafka's names; times are in milliseconds."""

from __future__ import annotations

from collections.abc import Callable

from headrace.client.wire.metrics import Metrics


class ProducerMetrics:
    def __init__(self, now: Callable[[], float]) -> None:
        self.all = metrics = Metrics(now)
        self.records = metrics.sensor("record-send", "rate", "total")
        self.bytes = metrics.sensor("byte", "rate", "total")
        self.errors = metrics.sensor("record-error", "rate", "total")
        self.retries = metrics.sensor("record-retry", "rate", "total")
        self.splits = metrics.sensor("batch-split", "rate", "total")
        self.batch_size = metrics.sensor("batch-size", "avg", "max")
        self.record_size = metrics.sensor("record-size", "avg", "max")
        self.compression = metrics.sensor("compression-rate", "avg")
        self.queue_time = metrics.sensor("record-queue-time", "avg", "max")
        self.records_per_request = metrics.sensor("records-per-request", "avg")
        self.requests = metrics.sensor("request", "rate", "total")
        self.latency = metrics.sensor("request-latency", "avg", "max")
        self.throttled = metrics.sensor("produce-throttle-time", "avg", "max")
        self.waited = metrics.sensor("bufferpool-wait-time", "total")

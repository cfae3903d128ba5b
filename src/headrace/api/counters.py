"""What producers brought, counted once for both ways of a Produce request."""

from __future__ import annotations

from headrace.base.metrics import Metrics


class AppendedCounters:
    __slots__ = ("bytes", "failed", "messages")

    def __init__(self, metrics: Metrics) -> None:
        self.messages = metrics.counter(
            "kafka_server_brokertopicmetrics_messagesin_total", "Records appended for producers."
        )
        self.bytes = metrics.counter(
            "kafka_server_brokertopicmetrics_bytesin_total", "Bytes of record batches appended."
        )
        self.failed = metrics.counter(
            "kafka_server_brokertopicmetrics_failedproducerequests_total", "Partitions whose batch was refused."
        )

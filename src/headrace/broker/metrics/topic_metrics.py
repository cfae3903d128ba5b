"""BrokerTopicMetrics for /metrics: producer and consumer traffic in total and per topic, under jmx_exporter's names."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.observe.text_format import family, labels
from headrace.replication.traffic import TopicTraffic, Traffic

_PREFIX = "kafka_server_brokertopicmetrics_"
_COUNTERS = (
    ("messagesin_total", "messages_in", "Records appended for producers."),
    ("bytesin_total", "bytes_in", "Bytes of record batches appended for producers."),
    ("bytesout_total", "bytes_out", "Bytes of record batches sent to consumers."),
    ("bytesrejected_total", "bytes_rejected", "Bytes of record batches larger than max.message.bytes."),
    ("totalproducerequests_total", "produces", "Record batches that producers sent."),
    ("totalfetchrequests_total", "fetches", "Reads of partitions for fetch requests."),
    ("failedproducerequests_total", "failed_produces", "Record batches refused for a reason that a client cannot expect."),
    ("failedfetchrequests_total", "failed_fetches", "Reads that failed because the log could not be read."),
)  # fmt: skip
_TOTALS = (
    ("replicationbytesin_total", "replication_bytes_in", "Bytes of record batches appended as a follower."),
    ("replicationbytesout_total", "replication_bytes_out", "Bytes of record batches sent to followers."),
)  # as in Kafka, not by topic


class TopicMetrics:
    """A section of /metrics."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic

    def expose(self) -> Iterator[bytes]:
        rows: list[tuple[str, TopicTraffic]] = [("", self._traffic.total())]
        rows += ((labels(topic=name), traffic) for name, traffic in self._traffic.topics())
        for name, attribute, help in _COUNTERS:
            yield from family(
                _PREFIX + name, help, "counter", ((row, getattr(counts, attribute)) for row, counts in rows)
            )
        for name, attribute, help in _TOTALS:
            yield from family(_PREFIX + name, help, "counter", [("", getattr(rows[0][1], attribute))])

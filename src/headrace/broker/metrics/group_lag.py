"""Consumer group lag for /metrics, in records and in seconds, so that no separate exporter is needed.

A group's coordinator exposes the lag on the partitions that it also leads. The metric names are those that existing dashboards use.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from headrace.base.clock import Clock
from headrace.base.errors import CorruptData, KafkaError
from headrace.base.metrics import Metrics
from headrace.broker.shard_runner import Coordination
from headrace.coordinators.group.shard import GroupShard
from headrace.observe.text_format import LINES_AT_ONCE, family, labels
from headrace.records.batch import HEADER_BYTES, LOG_APPEND_TIME, read_header
from headrace.replication.partition import Partition
from headrace.replication.replicas import Replicas
from headrace.storage.file_range import FileRange

SERIES_MAX = 50_000  # pairs of group and partition per scrape
Row = tuple[str, int, int | None, float | None]  # labels, committed offset, lag in records, lag in seconds

_HELP = {
    "kafka_consumergroup_current_offset": "The offset that the group has committed.",
    "kafka_consumergroup_lag": "Records after the committed offset.",
    "kafka_consumergroup_lag_seconds": "The age of the first record after the committed offset.",
}


class GroupLag:
    def __init__(self, groups: Coordination[GroupShard], replicas: Replicas, clock: Clock, metrics: Metrics) -> None:
        self._groups = groups
        self._replicas = replicas
        self._clock = clock
        self._left_out = 0
        metrics.gauge(
            "headrace_group_lag_left_out",
            f"Partitions of groups beyond the {SERIES_MAX} that one scrape includes.",
            lambda: float(self._left_out),
        )
        metrics.texts.append(self.expose)

    def expose(self) -> Iterator[bytes]:
        rows = []
        for number, row in enumerate(self._rows()):
            if row is not None:
                rows.append(row)
            if number % LINES_AT_ONCE == 0:
                yield b""  # let other tasks run
        for column, (name, text) in enumerate(_HELP.items(), 1):
            yield from family(
                name, text, "gauge", ((row[0], value) for row in rows if isinstance(value := row[column], int | float))
            )

    def _rows(self) -> Iterator[Row | None]:
        """Yield a row per committed partition, or None for a group that is left out."""
        self._left_out, total, now_ms = 0, 0, self._clock.now_ms()
        for machine in self._groups.loaded():
            for group, offsets in machine.offsets.groups.committed_items():
                shown = min(len(offsets), SERIES_MAX - total)
                total += shown
                self._left_out += len(offsets) - shown
                if not shown:
                    yield None
                    continue
                for (topic, index), committed in islice(offsets.committed_items(), shown):
                    names = labels(consumergroup=group, topic=topic, partition=index)
                    yield names, committed.offset, *self._lag(topic, index, committed.offset, now_ms)

    def _lag(self, topic: str, index: int, offset: int, now_ms: int) -> tuple[int | None, float | None]:
        try:
            partition = self._replicas.get(topic, index)
            partition.check_leader()
        except KafkaError:
            return None, None
        lag = max(0, partition.high_watermark - offset)
        return lag, _age_s(partition, offset, now_ms) if lag else 0.0


def _age_s(partition: Partition, offset: int, now_ms: int) -> float | None:
    """Return the age of the batch with the first unread record, or None if it is not cached.

    A scrape must not wait for a disk.
    """
    try:
        found = partition.log.read(max(offset, partition.log.log_start), HEADER_BYTES, partition.high_watermark).range
        data = FileRange(found.file, found.position, min(found.size, HEADER_BYTES)).read_cached()
        if not isinstance(data, bytes):
            return None
        header = read_header(data)
    except (OSError, CorruptData, KafkaError):
        return None
    written = header.max_timestamp if header.attributes & LOG_APPEND_TIME else header.base_timestamp
    return max(0, now_ms - written) / 1000

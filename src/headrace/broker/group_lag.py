"""How far groups are behind, for /metrics: in records and in time, so that nobody needs an exporter beside the node.

Told by the broker that coordinates a group, of the partitions that it leads itself. The names are those that dashboards know.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from headrace.base.clock import Clock
from headrace.base.errors import CorruptData, KafkaError
from headrace.base.metrics import Metrics
from headrace.broker.coordination import Coordination
from headrace.coordinators.group.shard import GroupShard
from headrace.observe.text_format import LINES_AT_ONCE, family, labels
from headrace.records.batch import HEADER_BYTES, LOG_APPEND_TIME, read_header
from headrace.replication.partition import Partition
from headrace.replication.replicas import Replicas
from headrace.storage.file_range import FileRange

SERIES_MAX = 50_000  # partitions of groups; a scrape of more helps nobody
Row = tuple[str, int, int | None, float | None]  # labels, committed offset, lag and its age

_HELP = {
    "kafka_consumergroup_current_offset": "What the group has committed.",
    "kafka_consumergroup_lag": "Records behind it.",
    "kafka_consumergroup_lag_seconds": "The age of the first of them.",
}


class GroupLag:
    def __init__(self, groups: Coordination[GroupShard], replicas: Replicas, clock: Clock, metrics: Metrics) -> None:
        self._groups = groups
        self._replicas = replicas
        self._clock = clock
        self._left_out = 0
        metrics.gauge(
            "headrace_group_lag_left_out",
            f"Partitions of groups beyond the {SERIES_MAX} that one scrape tells of.",
            lambda: float(self._left_out),
        )
        metrics.texts.append(self.expose)

    def expose(self) -> Iterator[bytes]:
        rows = []
        for number, row in enumerate(self._rows()):
            if row is not None:
                rows.append(row)
            if number % LINES_AT_ONCE == 0:
                yield b""  # nothing to say yet, but others wait
        for column, (name, text) in enumerate(_HELP.items(), 1):
            yield from family(
                name, text, "gauge", ((row[0], value) for row in rows if isinstance(value := row[column], int | float))
            )

    def _rows(self) -> Iterator[Row | None]:
        """None for a group that is left out."""
        self._left_out, told, now_ms = 0, 0, self._clock.now_ms()
        for machine in self._groups.loaded():
            for group, offsets in machine.offsets.groups.committed_items():
                telling = min(len(offsets), SERIES_MAX - told)
                told += telling
                self._left_out += len(offsets) - telling
                if not telling:
                    yield None
                    continue
                for (topic, index), committed in islice(offsets.committed_items(), telling):
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
    """By the batch that holds the first unread record; None if it does not lie in memory: a scrape waits for no disk."""
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

"""Partition metrics for /metrics: counts by condition and the log of each partition, under jmx_exporter's names."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headrace.metadata.image import Image
from headrace.observe.text_format import LINES_AT_ONCE, family, labels
from headrace.replication.partition import Partition
from headrace.replication.replicas import Replicas

PARTITIONS_MAX = 20_000  # partitions with series per scrape; the totals count all partitions

_GAUGES = {
    "kafka_log_log_size": "Bytes of the log.",
    "kafka_log_log_logstartoffset": "The first offset of the log.",
    "kafka_log_log_logendoffset": "The offset of the next record.",
    "kafka_log_log_numlogsegments": "Segments of the log.",
    "kafka_cluster_partition_replicascount": "Replicas of a partition that this broker leads.",
    "kafka_cluster_partition_insyncreplicascount": "In-sync replicas of a partition that this broker leads.",
    "kafka_cluster_partition_underreplicated": "1 if a replica is not in sync.",
    "kafka_cluster_partition_underminisr": "1 if fewer replicas are in sync than min.insync.replicas.",
    "kafka_cluster_partition_atminisr": "1 if just min.insync.replicas are in sync.",
}
_TOTALS = {
    "kafka_server_replicamanager_partitioncount": "Partitions on this broker.",
    "kafka_server_replicamanager_leadercount": "Partitions that this broker leads.",
    "kafka_server_replicamanager_offlinereplicacount": "Partitions whose log directory has failed.",
    "kafka_server_replicamanager_underreplicatedpartitions": "Led partitions with a replica that is not in sync.",
    "kafka_server_replicamanager_underminisrpartitioncount": "Led partitions with fewer in-sync replicas than min.insync.replicas.",
    "kafka_server_replicamanager_atminisrpartitioncount": "Led partitions with just min.insync.replicas in sync.",
    "kafka_server_replicamanager_reassigningpartitions": "Led partitions whose replicas are being moved.",
}


class PartitionMetrics:
    """A section of /metrics, collected in slices."""

    def __init__(self, replicas: Replicas, image: Callable[[], Image]) -> None:
        self._replicas = replicas
        self._image = image

    def expose(self) -> Iterator[bytes]:
        totals = dict.fromkeys(_TOTALS, 0)
        rows: list[tuple[str, tuple[float | None, ...]]] = []
        for number, partition in enumerate(self._replicas.all()):
            values = self._values(partition, totals)
            if number < PARTITIONS_MAX:
                topic, index = partition.name
                rows.append((labels(topic=topic, partition=index), values))
            if number % LINES_AT_ONCE == 0:
                yield b""  # let other tasks run
        totals["kafka_server_replicamanager_offlinereplicacount"] = len(self._replicas.offline())
        for name, help in _TOTALS.items():
            yield from family(name, help, "gauge", [("", totals[name])])
        for column, (name, help) in enumerate(_GAUGES.items()):
            samples = ((row, value) for row, values in rows if (value := values[column]) is not None)
            yield from family(name, help, "gauge", samples)

    def _values(self, partition: Partition, totals: dict[str, int]) -> tuple[float | None, ...]:
        """Return the values in the order of `_GAUGES`, with None for those that only a leader has, and add to `totals`."""
        log = partition.log
        totals["kafka_server_replicamanager_partitioncount"] += 1
        of_log = (log.size, log.log_start, log.log_end, len(log.segments))
        assigned = self._image().partition(*partition.name)
        if not partition.is_leader or assigned is None:
            return (*of_log, *(None,) * (len(_GAUGES) - len(of_log)))
        in_sync, replicas = len(partition.isr), len(assigned.replicas)
        under_replicated = in_sync < replicas
        under_min, at_min = in_sync < partition.min_isr, in_sync == partition.min_isr
        totals["kafka_server_replicamanager_leadercount"] += 1
        totals["kafka_server_replicamanager_underreplicatedpartitions"] += under_replicated
        totals["kafka_server_replicamanager_underminisrpartitioncount"] += under_min
        totals["kafka_server_replicamanager_atminisrpartitioncount"] += at_min
        totals["kafka_server_replicamanager_reassigningpartitions"] += bool(
            assigned.adding_replicas or assigned.removing_replicas
        )
        return (*of_log, replicas, in_sync, int(under_replicated), int(under_min), int(at_min))

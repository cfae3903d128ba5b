"""Counts changes of in-sync replicas for /metrics, as they appear in the metadata."""

from __future__ import annotations

from headrace.base.metrics import Metrics
from headrace.metadata.image import Image, Partition
from headrace.metadata.loader import Changes


class IsrMetrics:
    """A metadata publisher that counts ISR changes of partitions led by this broker."""

    def __init__(self, metrics: Metrics, node_id: int) -> None:
        self._node_id = node_id
        self._shrinks = metrics.counter("kafka_server_replicamanager_isrshrinks_total", "In-sync replicas lost.")
        self._expands = metrics.counter("kafka_server_replicamanager_isrexpands_total", "In-sync replicas regained.")

    def publish(self, old: Image, new: Image, changes: Changes) -> None:
        for name in changes.topics:
            before, after = old.topics.get(name), new.topics.get(name)
            if before is None or after is None or before.id != after.id:
                continue
            for was, now in zip(before.partitions, after.partitions, strict=False):
                if was is not now:
                    self._compare(was, now)

    def _compare(self, was: Partition, now: Partition) -> None:
        if self._node_id in (was.leader, now.leader):
            self._shrinks.value += not set(was.isr) <= set(now.isr)
            self._expands.value += not set(now.isr) <= set(was.isr)

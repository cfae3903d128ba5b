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
        for topic, index in changes.partitions:
            before, after = old.topics.get(topic), new.topics[topic]
            if before is not None and before.id == after.id and index < len(before.partitions):
                self._compare(before.partitions[index], after.partitions[index])

    def _compare(self, was: Partition, now: Partition) -> None:
        if self._node_id in (was.leader, now.leader):
            self._shrinks.value += not set(was.isr) <= set(now.isr)
            self._expands.value += not set(now.isr) <= set(was.isr)

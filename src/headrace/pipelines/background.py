"""The event loop thread of a Spark process, and its cluster connections.

Spark's Python workers are synchronous and are reused for many tasks, so a worker keeps its connections for the next task.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.client.sync.loop_thread import LoopThread, OneForEachProcess
from headrace.client.wire.cluster import Cluster
from headrace.client.wire.opening import open_cluster
from headrace.options.table import Value

CLUSTERS_MAX = 8  # per process; the least recently used one is closed to make way for another


class Background(LoopThread):
    def __init__(self) -> None:
        super().__init__("headrace-spark")
        self._clusters: dict[str, Cluster] = {}

    async def cluster(self, values: Mapping[str, Value]) -> Cluster:
        """Return the open cluster for these client options, opening it if needed; runs on the loop's thread."""
        key = repr(sorted(values.items(), key=lambda item: item[0]))
        cluster = self._clusters.pop(key, None) or open_cluster(values)
        self._clusters[key] = cluster  # dictionaries keep insertion order, so the last entry is the most recently used
        if len(self._clusters) > CLUSTERS_MAX:
            await self._clusters.pop(next(iter(self._clusters))).close()
        return cluster

    async def close_clusters(self) -> None:
        """Close all connections; the next task opens new ones."""
        while self._clusters:
            await self._clusters.popitem()[1].close()

    def close(self) -> None:
        self.do(self.close_clusters())
        super().close()


background = OneForEachProcess(Background)

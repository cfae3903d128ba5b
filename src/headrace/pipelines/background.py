"""The event loop of a process of Spark's, and the clusters that it speaks to: workers are synchronous and used many times.

A worker that has read from a cluster keeps its connections for the next task.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.base.options import Value
from headrace.client.cluster import Cluster
from headrace.client.loop_thread import LoopThread, OneForEachProcess
from headrace.client.opening import open_cluster

CLUSTERS_MAX = 8  # in one process; the one that was used least recently is closed for another


class Background(LoopThread):
    def __init__(self) -> None:
        super().__init__("headrace-spark")
        self._clusters: dict[str, Cluster] = {}

    async def cluster(self, values: Mapping[str, Value]) -> Cluster:
        """Made when first asked for; on the loop's own thread."""
        key = repr(sorted(values.items(), key=lambda item: item[0]))
        cluster = self._clusters.pop(key, None) or open_cluster(values)
        self._clusters[key] = cluster  # the last one of the dictionary was used last
        if len(self._clusters) > CLUSTERS_MAX:
            await self._clusters.pop(next(iter(self._clusters))).close()
        return cluster

    async def close_clusters(self) -> None:
        """Close all connections; the next task opens its own."""
        while self._clusters:
            await self._clusters.popitem()[1].close()

    def close(self) -> None:
        self.do(self.close_clusters())
        super().close()


background = OneForEachProcess(Background)

"""A thread with an event loop for each process, and the clusters that it speaks to: Spark's workers are synchronous and used many times.

A worker that has read from a cluster keeps its connections for the next task.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from headrace.base.options import Value
from headrace.client.cluster import Cluster
from headrace.client.opening import open_cluster

T = TypeVar("T")

CLUSTERS_MAX = 8  # in one process; the one that was used least recently is closed for another


class Background:
    def __init__(self) -> None:
        self.process_id = os.getpid()
        self.loop = asyncio.new_event_loop()
        self._clusters: dict[str, Cluster] = {}
        self._thread = threading.Thread(target=self._run, name="headrace-spark", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Whoever waits here can be interrupted; the work then is given up, too."""
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    async def cluster(self, values: Mapping[str, Value]) -> Cluster:
        """Made when first asked for; on the loop's own thread."""
        key = repr(sorted(values.items(), key=lambda item: item[0]))
        cluster = self._clusters.pop(key, None) or open_cluster(values)
        self._clusters[key] = cluster  # the last one of the dictionary was used last
        if len(self._clusters) > CLUSTERS_MAX:
            await self._clusters.pop(next(iter(self._clusters))).close()
        return cluster


_lock = threading.Lock()
_background: Background | None = None


def background() -> Background:
    """The one of this process: a child has none of its parent's threads, and must not use its connections."""
    global _background
    with _lock:
        if _background is None or _background.process_id != os.getpid():
            _background = Background()
        return _background

"""All fetchers of this broker: each partition that it follows is fetched by one of those for its leader."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from headrace.base.ids import TopicPartition
from headrace.base.metrics import Metrics
from headrace.broker.channels.broker_channel import ExchangeChannel
from headrace.broker.fetching.followed import FetchOptions, Followed, FollowerIdentity
from headrace.broker.fetching.replica_fetcher import ReplicaFetcher
from headrace.coordinators.partitioning import java_hash
from headrace.observe.text_format import family, labels
from headrace.replication.partition import Partition

CLIENT_ID = "Replica"  # label of Kafka's metrics
SERIES_MAX = 20_000  # followed partitions with series per scrape


class ReplicaFetchers:
    def __init__(
        self,
        identity: FollowerIdentity,
        channel: ExchangeChannel,
        options: FetchOptions,
        fetchers_per_broker: int,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._identity = identity
        self._channel = channel
        self._options = options
        self._per_broker = fetchers_per_broker
        self._loop = loop
        self._fetchers: dict[tuple[int, int], tuple[ReplicaFetcher, asyncio.Task[None]]] = {}
        self._assigned: dict[TopicPartition, tuple[int, int]] = {}
        self._stopping: set[asyncio.Task[None]] = set()
        self._closed = False

    def update(self, partition: Partition) -> None:
        """Fetch a partition from its leader, or no longer, according to its role."""
        key = self._fetcher_of(partition) if partition.is_follower and not self._closed else None
        known = self._assigned.get(partition.name)
        if known is not None and known != key:
            self._remove(partition, known)
        if key is not None:
            self._assigned[partition.name] = key
            self._fetcher(key).add(partition)

    def _fetcher_of(self, partition: Partition) -> tuple[int, int]:
        return partition.leader, (31 * java_hash(partition.name.topic) + partition.name.partition) % self._per_broker

    def _fetcher(self, key: tuple[int, int]) -> ReplicaFetcher:
        found = self._fetchers.get(key)
        if found is not None:
            return found[0]
        fetcher = ReplicaFetcher(*key, self._identity, self._channel, self._options)
        self._fetchers[key] = (fetcher, self._loop.create_task(fetcher.run()))
        return fetcher

    def _remove(self, partition: Partition, key: tuple[int, int]) -> None:
        del self._assigned[partition.name]
        fetcher, task = self._fetchers[key]
        fetcher.remove(partition)
        if not len(fetcher):
            del self._fetchers[key]
            self._stop(task)

    def _stop(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        self._stopping.add(task)
        task.add_done_callback(self._stopping.discard)

    def cancel(self) -> None:
        self._closed = True
        for _, task in self._fetchers.values():
            self._stop(task)
        self._fetchers.clear()
        self._assigned.clear()

    async def stop(self) -> None:
        self.cancel()
        await asyncio.gather(*self._stopping, return_exceptions=True)

    # --- metrics

    def followed(self) -> list[Followed]:
        return [one for fetcher, _ in self._fetchers.values() for one in fetcher.followed()]

    def export(self, metrics: Metrics) -> None:
        metrics.gauge(
            "kafka_server_replicafetchermanager_maxlag",
            "Largest number of records by which a followed partition is behind its leader.",
            lambda: float(max((one.lag for one in self.followed()), default=0)),
            clientid=CLIENT_ID,
        )
        metrics.gauge(
            "kafka_server_replicafetchermanager_minfetchrate",
            "Fetches per second of the fetcher with the fewest, recently.",
            lambda: min((fetcher.fetch_rate() for fetcher, _ in self._fetchers.values()), default=0.0),
            clientid=CLIENT_ID,
        )
        metrics.gauge(
            "kafka_server_replicafetchermanager_failedpartitionscount",
            "Followed partitions whose leader sends corrupt batches.",
            lambda: float(sum(one.state.is_failed for one in self.followed())),
            clientid=CLIENT_ID,
        )
        metrics.texts.append(self.expose)

    def expose(self) -> Iterator[bytes]:
        rows = [
            (
                labels(
                    clientid=f"ReplicaFetcherThread-{number}-{fetcher.source}",
                    topic=one.partition.name.topic,
                    partition=one.partition.name.partition,
                ),
                one.lag,
            )
            for (_, number), (fetcher, _) in self._fetchers.items()
            for one in fetcher.followed()
        ]
        yield from family(
            "kafka_server_fetcherlagmetrics_consumerlag",
            "Records by which a followed partition is behind its leader.",
            "gauge",
            rows[:SERIES_MAX],
        )

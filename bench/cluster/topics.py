"""Many topics with three replicas: created, deleted, and idle."""

from __future__ import annotations

import time
from dataclasses import dataclass

from bench.errors import BenchFailed
from bench.line import Figure, Measurement, Options
from bench.load.fallback import cpu_seconds
from bench.systems.clusters import REPLICAS, BrokerCluster
from bench.systems.requests import READY_S_MAX, RETRY_S, create_topics, delete_topics, describe_topic
from bench.systems.servers import KAFKA, System

TOPICS_AT_ONCE = 50  # topics in one CreateTopics or DeleteTopics request
IDLE_TOPICS = 10
SETTLE_S = 30.0  # a JVM goes on compiling what creating the partitions has made hot


def _names(topic: str, count: int) -> list[str]:
    return [f"{topic}-{number}" for number in range(count)]


@dataclass(frozen=True)
class ManyTopics:
    """Topics of one partition; a topic counts as created when the last of its replicas is in sync on every node."""

    name: str = "cluster-topics"
    title: str = "1,000 topics with three replicas"
    figures: tuple[Figure, ...] = (
        Figure("create_s", "create, s", False, goal=1.0, digits=2),
        Figure("delete_s", "delete, s", False, goal=1.0, digits=2),
    )
    against: tuple[str, ...] = (KAFKA,)
    alone: bool = False
    on_cluster: bool = True
    warm_rounds: int = 0

    def measure(self, system: System, topic: str, options: Options) -> Measurement:
        assert isinstance(system, BrokerCluster)
        names = _names(topic, options.cluster_topics)
        chunks = [names[at : at + TOPICS_AT_ONCE] for at in range(0, len(names), TOPICS_AT_ONCE)]
        connection = system.connection()
        began = time.monotonic()
        for chunk in chunks:
            create_topics(connection, chunk, 1, REPLICAS)
        for name in names:
            system.wait_until_in_sync(name, 1)
        create_s = time.monotonic() - began
        began = time.monotonic()
        for chunk in chunks:
            delete_topics(connection, chunk)
        for node_id in system.node_ids:
            _wait_until_unknown(system, node_id, names)
        return Measurement({"create_s": create_s, "delete_s": time.monotonic() - began}, {"topics": len(names)})


def _wait_until_unknown(system: BrokerCluster, node_id: int, names: list[str]) -> None:
    deadline = time.monotonic() + READY_S_MAX
    for name in names:
        while describe_topic(system.connection(node_id), name) is not None:
            if time.monotonic() > deadline:
                raise BenchFailed(f"node {node_id} still knows {name} after {READY_S_MAX:.0f} s")
            time.sleep(RETRY_S)


@dataclass(frozen=True)
class IdlePartitions:
    """CPU and memory of all nodes together while nobody reads or writes."""

    name: str = "cluster-idle"
    title: str = "three nodes with 1,000 idle partitions of three replicas"
    figures: tuple[Figure, ...] = (
        Figure("cpu_percent", "CPU, % of a core", False, goal=0.4, digits=2),
        Figure("rss_mb", "resident memory, MB", False, goal=0.4),
    )
    against: tuple[str, ...] = (KAFKA,)
    alone: bool = True
    on_cluster: bool = True
    warm_rounds: int = 0
    rounds_max: int = 1

    def measure(self, system: System, topic: str, options: Options) -> Measurement:
        assert isinstance(system, BrokerCluster)
        names = _names(topic, IDLE_TOPICS)
        partitions = options.cluster_topics // IDLE_TOPICS
        try:
            create_topics(system.connection(), names, partitions, REPLICAS)
            for name in names:
                system.wait_until_in_sync(name, partitions)
            time.sleep(min(SETTLE_S, options.idle_seconds * 5))
            began, before = time.monotonic(), cpu_seconds(system.pids)
            time.sleep(options.idle_seconds)
            cpu_percent = (cpu_seconds(system.pids) - before) / (time.monotonic() - began) * 100
            return Measurement({"cpu_percent": cpu_percent, "rss_mb": system.rss_bytes() / 1e6})
        finally:
            system.close()

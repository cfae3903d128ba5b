"""Clusters under test: three combined nodes of Headrace or Apache Kafka, with replication factor 3."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from testkit.kafka_cluster import KafkaCluster

from bench.errors import BenchFailed, CannotRun
from bench.load.generator import Target
from bench.systems.processes import rss_bytes
from bench.systems.requests import (
    READY_S_MAX,
    RETRY_S,
    Connection,
    TopicState,
    active_controller,
    create_topic,
    delete_topic,
    describe_topic,
    new_producer_id,
    serves_partitions,
)
from bench.systems.servers import KAFKA_HEAP, KAFKA_SETTINGS, Process, TlsListener, stop_cleanly
from headrace.testing.process_cluster import ClusterProcesses
from headrace.testing.processes import LOOPBACK, free_port

NODES = 3
REPLICAS = 3
SETTINGS = {"min.insync.replicas": "2"}


class Nodes(Protocol):
    """The processes of a cluster."""

    def start(self) -> object: ...

    def close(self) -> None: ...


Spawn = Callable[[], tuple[Nodes, list[Process]]]


def spawn_headrace_nodes() -> tuple[Nodes, list[Process]]:
    """Return nodes with /metrics enabled, as users run them."""
    cluster = ClusterProcesses(NODES, SETTINGS)
    for node in cluster.nodes:
        node.settings["headrace.http.listener"] = f"{LOOPBACK}:{free_port()}"
    return cluster, list(cluster.nodes)


def spawn_kafka_nodes() -> tuple[Nodes, list[Process]]:
    cluster = KafkaCluster(NODES, {**SETTINGS, **KAFKA_SETTINGS}, heap=KAFKA_HEAP)
    return cluster, list(cluster.nodes)


class BrokerCluster:
    """A cluster that is started when first needed and kept warm until `close`. Node ids count from 1."""

    def __init__(self, name: str, spawn: Spawn) -> None:
        self.name = name
        self._spawn = spawn
        self._nodes: Nodes | None = None
        self._processes: list[Process] = []
        self._connections: dict[int, Connection] = {}

    # --- nodes

    @property
    def is_running(self) -> bool:
        return self._nodes is not None

    @property
    def processes(self) -> list[Process]:
        """Return the processes in the order of their ids; this starts the cluster."""
        if self._nodes is None:
            self._nodes, self._processes = self._spawn()
            self._nodes.start()
        return self._processes

    def process(self, node_id: int) -> Process:
        return self.processes[node_id - 1]

    @property
    def node_ids(self) -> range:
        return range(1, len(self.processes) + 1)

    @property
    def port(self) -> int:
        return self.processes[0].port

    @property
    def pid(self) -> int:
        return self.processes[0].pid

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(process.pid for process in self.processes)

    @property
    def tls(self) -> TlsListener:
        raise CannotRun("the clusters have no TLS listener")

    @property
    def bootstrap(self) -> str:
        return ",".join(process.bootstrap for process in self.processes)

    def connection(self, node_id: int = 1) -> Connection:
        """Return a connection to a node that runs."""
        if node_id not in self._connections:
            self._connections[node_id] = Connection(self.process(node_id).port)
        return self._connections[node_id]

    def active_controller(self) -> int:
        return active_controller(self.connection())

    def stop(self, node_id: int) -> None:
        """Stop a node cleanly."""
        self._disconnect(node_id)
        stop_cleanly(self.process(node_id))

    @contextlib.contextmanager
    def killed(self, node_id: int) -> Iterator[None]:
        """Kill a node, and start it again at the end of the block."""
        self._disconnect(node_id)
        self.process(node_id).kill()
        yield
        self.process(node_id).start()

    def _disconnect(self, node_id: int) -> None:
        connection = self._connections.pop(node_id, None)
        if connection is not None:
            connection.close()

    def rss_bytes(self) -> int:
        return sum(rss_bytes(pid) for pid in self.pids)

    # --- topics

    def new_producer_id(self) -> tuple[int, int]:
        return new_producer_id(self.connection())

    def create_topic(self, name: str, partitions: int) -> None:
        """Create the topic and wait until all replicas are in sync, as all nodes see it, and the leaders serve all partitions."""
        create_topic(self.connection(), name, partitions, REPLICAS)
        self.wait_until_in_sync(name, partitions)
        deadline = time.monotonic() + READY_S_MAX
        for index, leader in enumerate(self.topic(name).leaders):
            while not serves_partitions(self.connection(leader), name, [index]):
                if time.monotonic() > deadline:
                    raise BenchFailed(f"{self.name}: node {leader} does not serve {name}-{index}")
                time.sleep(RETRY_S)

    def wait_until_in_sync(self, name: str, partitions: int) -> None:
        """Wait until every node reports all replicas of the topic as in sync."""
        deadline = time.monotonic() + READY_S_MAX
        waiting = list(self.node_ids)
        while waiting:
            state = describe_topic(self.connection(waiting[0]), name)
            if state is not None and state.in_sync == [REPLICAS] * partitions and all(state.leaders):
                waiting.pop(0)
            elif time.monotonic() > deadline:
                raise BenchFailed(f"{self.name}: {name} is not in sync after {READY_S_MAX:.0f} s: {state}")
            else:
                time.sleep(RETRY_S)

    def topic(self, name: str) -> TopicState:
        state = describe_topic(self.connection(), name)
        if state is None:
            raise BenchFailed(f"{self.name} does not know {name}")
        return state

    def target(self, topic: str) -> Target:
        """Return the leaders of the partitions in their order, and all processes."""
        return Target(tuple(self.process(leader).port for leader in self.topic(topic).leaders), self.pids)

    def delete_topic(self, name: str) -> None:
        """Delete the topic and wait until its files are gone from all nodes."""
        delete_topic(self.connection(), name)
        deadline = time.monotonic() + READY_S_MAX
        directory = re.compile(rf"{re.escape(name)}-[0-9]+([.].*)?")
        for process in self.processes:
            while any(directory.fullmatch(path.name) for path in process.data_dir.iterdir()):
                if time.monotonic() > deadline:
                    raise BenchFailed(f"{self.name} still has files of {name} after {READY_S_MAX:.0f} s")
                time.sleep(RETRY_S)

    def log_bytes(self, node_id: int, topic: str) -> int:
        """Return the size of a node's log segments of a topic."""
        files = self.process(node_id).data_dir.glob(f"{topic}-*/*.log")
        return sum(_size(path) for path in files)

    def close(self) -> None:
        """Kill the nodes and remove their data."""
        for node_id in list(self._connections):
            self._disconnect(node_id)
        if self._nodes is not None:
            self._nodes.close()
        self._nodes, self._processes = None, []


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0

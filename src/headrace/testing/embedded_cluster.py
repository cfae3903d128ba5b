"""A cluster of real nodes in the process of a test, each with its own thread and event loop, on free loopback ports."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping
from pathlib import Path

from headrace.local_cluster.folder import format_data
from headrace.local_cluster.layout import REPLICAS_MAX, NodePlan, bootstrap_servers, node_settings
from headrace.node.new_cluster.formatting import new_cluster_id
from headrace.testing.cluster import EmbeddedNode
from headrace.testing.processes import free_port

# Shorter than Kafka's defaults (1 s and 9 s), which allow for networks: tests wait for elections and for the ends of sessions.
FAST_FAILOVER = {
    "controller.quorum.election.timeout.ms": "300",
    "controller.quorum.election.backoff.max.ms": "200",
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
}


class EmbeddedCluster:
    """A cluster of combined nodes (broker and controller), with ids from 1, that serves from `start` to `close`.

    Internal and new topics have three replicas, or as many as there are nodes, and tolerate the loss of one. The nodes share the
    interpreter of the test: for load, and for faults of the network, use `headrace.testing.process_cluster.ClusterProcesses`.
    """

    def __init__(self, nodes: int = 3, settings: Mapping[str, str] | None = None) -> None:
        """Prepare the nodes; `settings`, by Kafka's names, apply to all."""
        self._temporary = tempfile.TemporaryDirectory(prefix="headrace-")
        self.cluster_id = new_cluster_id(random.SystemRandom())
        self.replicas = min(nodes, REPLICAS_MAX)
        self._plans = [
            NodePlan(id=node_id, port=free_port(), controller_port=free_port()) for node_id in range(1, nodes + 1)
        ]
        self.nodes: list[EmbeddedNode] = []
        for plan in self._plans:
            directory = Path(self._temporary.name, str(plan.id))
            format_data(directory, plan.id, self.cluster_id)
            given = {**FAST_FAILOVER, **node_settings(plan, self._plans), **(settings or {})}
            self.nodes.append(EmbeddedNode(given, data_dir=directory))

    def __enter__(self) -> EmbeddedCluster:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        """Return the addresses of all nodes for bootstrap.servers."""
        return bootstrap_servers(self._plans)

    def node(self, node_id: int) -> EmbeddedNode:
        """Return the node with this id."""
        return self.nodes[node_id - 1]

    def start(self) -> EmbeddedCluster:
        """Start all nodes that do not run, and return when they serve; propagate the exception of one that cannot."""
        started = [node for node in self.nodes if not node.is_running]
        try:
            for node in started:
                node.launch()
            for node in started:
                node.wait_until_serving()
        except BaseException:
            self.close()
            raise
        return self

    def restore(self) -> None:
        """Resume all nodes that are paused and start all that do not run."""
        for node in self.nodes:
            node.resume()
        if not all(node.is_running for node in self.nodes):
            self.start()

    def close(self) -> None:
        """Stop all nodes as if their processes had died, and remove their data."""
        try:
            for node in self.nodes:
                node.kill()
        finally:
            self._temporary.cleanup()

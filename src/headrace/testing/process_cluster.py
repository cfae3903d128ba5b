"""A cluster of real `headrace serve` processes on loopback, whose nodes a test can kill, pause and restart one by one."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.base.clock import SystemClock
from headrace.base.ids import NodeId
from headrace.node.formatting import format_log_dirs, new_cluster_id
from headrace.storage.disk import DiskFiles
from headrace.storage.log_dirs import close_log_dirs, open_log_dirs
from headrace.testing.processes import START_S_MAX, Host, NodeProcess, free_port

REPLICAS_MAX = 3


def format_node(node: NodeProcess, node_id: NodeId, cluster_id: str) -> None:
    """Format the data directory of a node that has not been started yet, as a member of this cluster."""
    node.data_dir.mkdir(parents=True)
    path = str(node.data_dir)
    log_dirs = open_log_dirs(DiskFiles(), [path], node_id=node_id, cluster_id=cluster_id)
    try:
        format_log_dirs(log_dirs, path, node_id, cluster_id, SystemClock().now_ms(), random.SystemRandom())
    finally:
        close_log_dirs(log_dirs)


class ClusterProcesses:
    """A cluster of combined nodes (broker and controller), with ids from 1.

    Internal and new topics have three replicas, or as many as there are nodes, and tolerate the loss of one.
    """

    def __init__(
        self, nodes: int = 3, settings: Mapping[str, str] | None = None, *, hosts: Sequence[Host] | None = None
    ) -> None:
        """Prepare the nodes, all on loopback unless `hosts` has one for each. `settings`, by Kafka's names, apply to all."""
        self._temporary = tempfile.TemporaryDirectory(prefix="headrace-cluster-")
        self.cluster_id = new_cluster_id(random.SystemRandom())
        self.replicas = min(nodes, REPLICAS_MAX)
        self.nodes = [
            NodeProcess(directory=Path(self._temporary.name, str(node_id)), host=host)
            for node_id, host in enumerate(hosts or [Host()] * nodes, 1)
        ]
        controllers = [free_port() for _ in self.nodes]
        voters = ",".join(
            f"{node_id}@{node.host.address}:{port}"
            for node_id, (node, port) in enumerate(zip(self.nodes, controllers, strict=True), 1)
        )
        for node_id, (node, controller) in enumerate(zip(self.nodes, controllers, strict=True), 1):
            address = f"PLAINTEXT://{node.bootstrap}"
            node.settings = {
                "process.roles": "broker,controller",
                "node.id": str(node_id),
                "listeners": f"{address},CONTROLLER://{node.host.address}:{controller}",
                "advertised.listeners": address,
                "controller.listener.names": "CONTROLLER",
                "controller.quorum.voters": voters,
                **self._replication(),
                **(settings or {}),
            }
            format_node(node, NodeId(node_id), self.cluster_id)

    def _replication(self) -> dict[str, str]:
        replicas, in_sync = str(self.replicas), str(max(1, self.replicas - 1))
        topics = ("offsets.topic", "transaction.state.log", "share.coordinator.state.topic")
        return {
            **{f"{topic}.replication.factor": replicas for topic in topics},
            **{f"{topic}.min.isr": in_sync for topic in topics[1:]},
            "default.replication.factor": replicas,
            "min.insync.replicas": in_sync,
        }

    def __enter__(self) -> ClusterProcesses:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        """Return the addresses of all nodes for bootstrap.servers."""
        return ",".join(node.bootstrap for node in self.nodes)

    def node(self, node_id: int) -> NodeProcess:
        """Return the node with this id."""
        return self.nodes[node_id - 1]

    def start(self, timeout_s: float = START_S_MAX) -> ClusterProcesses:
        """Start all nodes that do not run, and return when they serve; raise ProcessFailed if one does not."""
        started = [node for node in self.nodes if not node.is_running]
        try:
            for node in started:
                node.launch()
            for node in started:
                node.wait_until_serving(timeout_s)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Kill all nodes and remove their data and logs."""
        for node in self.nodes:
            node.kill()
        self._temporary.cleanup()

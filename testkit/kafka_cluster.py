"""A cluster of real Kafka nodes on loopback, each a combined broker and controller, that can be killed one by one."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from headrace.local_cluster.layout import REPLICAS_MAX, replication_settings
from headrace.testing.processes import LOOPBACK
from testkit.kafka_peer import KafkaPeer, new_cluster_id

NODES = 3
HEAP = ("-Xms192M", "-Xmx384M")


class KafkaCluster:
    def __init__(
        self,
        nodes: int = NODES,
        settings: Mapping[str, str] | None = None,
        *,
        heap: tuple[str, ...] = HEAP,
        dynamic_quorum: bool = False,
    ) -> None:
        """Prepare the nodes. With `dynamic_quorum`, the voters are in the metadata log (KIP-853)."""
        self._temporary = tempfile.TemporaryDirectory(prefix="kafka-cluster-")
        self.cluster_id = cluster_id = new_cluster_id()
        self.nodes = [
            KafkaPeer(directory=Path(self._temporary.name, str(node)), heap=heap, cluster_id=cluster_id)
            for node in range(1, nodes + 1)
        ]
        self.replicas = min(nodes, REPLICAS_MAX)
        voters = [f"{node}@{LOOPBACK}:{peer.controller_port}" for node, peer in enumerate(self.nodes, 1)]
        quorum = {"controller.quorum.voters": ",".join(voters)}
        if dynamic_quorum:
            addresses = [f"{LOOPBACK}:{peer.controller_port}" for peer in self.nodes]
            quorum = {"controller.quorum.voters": "", "controller.quorum.bootstrap.servers": ",".join(addresses)}
            initial = ",".join(f"{voter}:{new_cluster_id()}" for voter in voters)  # a directory id has the same form
            for peer in self.nodes:
                peer.format_options = ("--initial-controllers", initial)
        for node, peer in enumerate(self.nodes, 1):
            peer.settings = {
                "node.id": str(node),
                **quorum,
                **_replication(nodes),
                **(settings or {}),
            }

    def __enter__(self) -> KafkaCluster:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def bootstrap(self) -> str:
        return ",".join(peer.bootstrap for peer in self.nodes)

    def start(self) -> KafkaCluster:
        try:
            for peer in self.nodes:
                peer.launch()
            for peer in self.nodes:
                peer.wait_until_it_responds()
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Kill all nodes and remove their data; a clean stop would only save data that is deleted anyway."""
        for peer in self.nodes:
            peer.kill()
        self._temporary.cleanup()


def _replication(nodes: int) -> dict[str, str]:
    """Return the settings of a Headrace cluster, with those for the topic of share groups, which Headrace does not have."""
    settings = replication_settings(nodes)
    return {
        **settings,
        "share.coordinator.state.topic.replication.factor": settings["default.replication.factor"],
        "share.coordinator.state.topic.min.isr": settings["min.insync.replicas"],
    }

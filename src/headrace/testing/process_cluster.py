"""A cluster of real `headrace serve` processes on loopback, whose nodes a test can kill, pause, restart and cut off one by one."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from headrace.local_cluster.folder import format_data
from headrace.local_cluster.layout import REPLICAS_MAX, NodePlan, node_settings
from headrace.node.new_cluster.formatting import new_cluster_id
from headrace.testing.links import CLIENTS, Links
from headrace.testing.processes import START_S_MAX, Host, NodeProcess, free_port

# The settings by which nodes and clients find a node: with links that can be cut, they name its proxies.
ADDRESS_OPTIONS = ("advertised.listeners", "controller.quorum.voters")


class ClusterProcesses:
    """A cluster of combined nodes (broker and controller), with ids from 1.

    Internal and new topics have three replicas, or as many as there are nodes, and tolerate the loss of one.
    """

    def __init__(
        self,
        nodes: int = 3,
        settings: Mapping[str, str] | None = None,
        *,
        hosts: Sequence[Host] | None = None,
        links: bool = False,
    ) -> None:
        """Prepare the nodes, all on loopback unless `hosts` has one for each. `settings`, by Kafka's names, apply to all.

        With `links`, proxies stand in front of the nodes, so that `cut` and `heal` work (Linux, loopback only). They cost throughput.
        """
        assert not (hosts and links), "links are proxies on loopback"
        self._temporary = tempfile.TemporaryDirectory(prefix="headrace-cluster-")
        self.cluster_id = new_cluster_id(random.SystemRandom())
        self.replicas = min(nodes, REPLICAS_MAX)
        self.nodes = [
            NodeProcess(directory=Path(self._temporary.name, str(node_id)), host=host)
            for node_id, host in enumerate(hosts or [Host()] * nodes, 1)
        ]
        plans = [
            NodePlan(id=node_id, host=node.host.address, port=node.port, controller_port=free_port())
            for node_id, node in enumerate(self.nodes, 1)
        ]
        self._links = Links(self._pids) if links else None
        known_as = plans if self._links is None else [self._put_proxies(self._links, plan) for plan in plans]
        for node, plan, shown in zip(self.nodes, plans, known_as, strict=True):
            addresses = node_settings(shown, known_as)
            node.advertised_port = shown.port
            node.settings = {
                **node_settings(plan, plans),
                **{name: addresses[name] for name in ADDRESS_OPTIONS},
                **(settings or {}),
            }
            format_data(node.data_dir, plan.id, self.cluster_id)

    def _put_proxies(self, links: Links, plan: NodePlan) -> NodePlan:
        """Return the plan with the ports of the proxies."""
        shown = replace(plan, port=free_port(), controller_port=free_port())
        links.add(plan.id, plan.port, shown.port)
        links.add(plan.id, plan.controller_port, shown.controller_port)
        return shown

    def _pids(self) -> dict[int, int]:
        found: dict[int, int] = {}
        for node_id, node in enumerate(self.nodes, 1):
            pid = node.running_pid
            if pid is not None:
                found[node_id] = pid
        return found

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
            if self._links is not None and not self._links.is_running:
                self._links.start()
            for node in started:
                node.launch()
            for node in started:
                node.wait_until_serving(timeout_s)
        except BaseException:
            self.close()
            raise
        return self

    def cut(self, one: int, other: int | None = None) -> None:
        """Let nothing pass between two nodes, or between a node and everything else, until `heal`; needs `links`.

        `headrace.testing.links.CLIENTS` stands for all clients: `cut(1, CLIENTS)` leaves node 1 connected to the other nodes.
        """
        assert self._links is not None, "ClusterProcesses(…, links=True) comes first"
        parties = {CLIENTS, *range(1, len(self.nodes) + 1)}
        assert {one, one if other is None else other} <= parties, f"the parties of a link are {sorted(parties)}"
        others = parties - {one} if other is None else {other}
        self._links.cut({frozenset((one, each)) for each in others})

    def heal(self) -> None:
        """Restore all links that were cut."""
        assert self._links is not None, "ClusterProcesses(…, links=True) comes first"
        self._links.heal()

    def close(self) -> None:
        """Kill all nodes and remove their data and logs."""
        for node in self.nodes:
            node.kill()
        if self._links is not None:
            self._links.close()
        self._temporary.cleanup()

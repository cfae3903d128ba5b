"""The nodes of a run: a single one, or several that form a cluster."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence

from headrace.base.errors import ConfigError
from headrace.demo.folders import Folders, stored_cluster_id
from headrace.local_cluster.folder import format_data
from headrace.local_cluster.layout import COMBINED_CONTROLLERS_MAX, LOOPBACK, NodePlan, node_settings
from headrace.node.new_cluster.formatting import new_cluster_id

HTTP_PORT = 9404
PORTS_TRIED = 50


def plan_demo_nodes(brokers: int, port: int) -> list[NodePlan]:
    """Return the nodes with free ports, from `port` and HTTP_PORT on; raise ConfigError if there are too few."""
    plans: list[NodePlan] = []
    http_port = HTTP_PORT
    for node_id in range(1, brokers + 1):
        port, http_port = free_port_from(port), free_port_from(http_port)
        is_controller = brokers > 1 and node_id <= COMBINED_CONTROLLERS_MAX
        controller_port = free_port_from(port + 1) if is_controller else 0
        plans.append(NodePlan(id=node_id, port=port, controller_port=controller_port, http_port=http_port))
        port, http_port = max(port, controller_port) + 1, http_port + 1
    return plans


def demo_settings(plan: NodePlan, plans: Sequence[NodePlan], folders: Folders) -> dict[str, str]:
    """Return the settings of a node, by Kafka's names."""
    address = f"PLAINTEXT://{plan.address}"
    own = {"listeners": address, "advertised.listeners": address} if len(plans) == 1 else node_settings(plan, plans)
    return {
        **own,
        "log.dirs": str(folders.data_of(plan.id)),
        "headrace.http.listener": f"localhost:{plan.http_port}",
    }


def format_cluster(folders: Folders) -> None:
    """Format the data directories of a cluster, of which all nodes must know the id; a single node formats its own."""
    if folders.brokers == 1:
        return
    numbers = range(1, folders.brokers + 1)
    known = [stored_cluster_id(folders.data_of(number)) for number in numbers]
    cluster_id = next(filter(None, known), None) or new_cluster_id(random.SystemRandom())
    for number in numbers:
        format_data(folders.data_of(number), number, cluster_id)


def free_port_from(wanted: int) -> int:
    """Return the first free port from `wanted` on; raise ConfigError if the next PORTS_TRIED ports are all in use."""
    for port in range(wanted, wanted + PORTS_TRIED):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port))
                return port
            except OSError:
                continue
    raise ConfigError(f"none of the ports {wanted} to {wanted + PORTS_TRIED - 1} is free")

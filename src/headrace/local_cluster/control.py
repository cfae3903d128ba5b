"""Starts and stops the nodes of a local cluster."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Collection, Iterable

from headrace.base.errors import ConfigError
from headrace.local_cluster.folder import ClusterFolder
from headrace.local_cluster.layout import Layout
from headrace.local_cluster.node_process import BackgroundNode, NodeFailed

START_S_MAX = 60.0
STOP_S_MAX = 45.0  # longer than a node waits for other brokers and for a controller while it stops
KILLED_S_MAX = 10.0
POLL_S = 0.05

Report = Callable[[str], None]


class LocalCluster:
    """The nodes of a cluster on this machine, whichever command started them."""

    def __init__(self, folder: ClusterFolder, layout: Layout) -> None:
        self.folder = folder
        self.layout = layout
        self.nodes = [BackgroundNode(plan, folder.node(plan.id)) for plan in layout.nodes]

    def node(self, node_id: int) -> BackgroundNode:
        """Return the node with this id; raise ConfigError if there is none."""
        self.layout.node(node_id)
        return next(node for node in self.nodes if node.plan.id == node_id)

    def check_ports(self) -> None:
        """Raise ConfigError if another program uses a port of a node that does not run."""
        for node in self.nodes:
            if not node.is_running:
                _check_ports(node)

    def start(self, report: Callable[[BackgroundNode], None]) -> list[BackgroundNode]:
        """Start all nodes that do not run, calling `report` for each one that serves, and return them.

        Raise NodeFailed if one of them does not serve; the others keep running.
        """
        stopped = [node for node in self.nodes if not node.is_running]
        for node in stopped:
            self.folder.prepare(self.layout, node.plan)
        for node in stopped:
            node.launch(os.environ)
        waiting = list(stopped)
        deadline = time.monotonic() + START_S_MAX
        while waiting:
            for node in [one for one in waiting if one.is_serving()]:
                waiting.remove(node)
                report(node)
            if waiting and time.monotonic() >= deadline:
                raise waiting[0].give_up(START_S_MAX)
            time.sleep(POLL_S if waiting else 0)
        return stopped

    def stop(self, report: Report) -> None:
        """Stop all nodes: the brokers first, then the controllers. A node that does not stop in time is killed."""
        running = [node for node in self.nodes if node.is_running]
        for stage in stop_stages(running):
            self._stop_together(stage, report)

    def stop_node(self, node: BackgroundNode, report: Report) -> None:
        """Stop one node, which moves its leaders to other brokers first."""
        self._stop_together([node], report)

    def kill(self, node: BackgroundNode) -> None:
        """Kill one node and return when it is gone; raise ConfigError if it does not run."""
        if not node.kill():
            raise ConfigError(f"node {node.plan.id} does not run")
        if _wait_for_end([node], KILLED_S_MAX):
            raise NodeFailed(f"node {node.plan.id} has not ended {KILLED_S_MAX:.0f} s after SIGKILL")

    def _stop_together(self, nodes: Collection[BackgroundNode], report: Report) -> None:
        for node in nodes:
            node.terminate()
        left = _wait_for_end(nodes, STOP_S_MAX, lambda node: report(f"node {node.plan.id} is stopped"))
        for node in left:
            report(f"node {node.plan.id} did not stop within {STOP_S_MAX:.0f} s and is killed")
            node.kill()
        if _wait_for_end(left, KILLED_S_MAX):
            raise NodeFailed(f"node {left[0].plan.id} has not ended {KILLED_S_MAX:.0f} s after SIGKILL")


def stop_stages(nodes: Iterable[BackgroundNode]) -> list[list[BackgroundNode]]:
    """Return the nodes in the order in which they are stopped; those of a stage are stopped together."""
    nodes = list(nodes)
    brokers = [node for node in nodes if not node.plan.is_controller]
    controllers = [node for node in nodes if node.plan.is_controller]
    return [stage for stage in (brokers, controllers) if stage]


def _wait_for_end(
    nodes: Iterable[BackgroundNode], seconds: float, report: Callable[[BackgroundNode], None] = lambda node: None
) -> list[BackgroundNode]:
    """Wait until the nodes have ended, and return those that have not in time."""
    left = list(nodes)
    deadline = time.monotonic() + seconds
    while left:
        for node in [one for one in left if not one.is_running]:
            left.remove(node)
            report(node)
        if not left or time.monotonic() >= deadline:
            break
        time.sleep(POLL_S)
    return left


def _check_ports(node: BackgroundNode) -> None:
    """Raise ConfigError if a port of the node is in use."""
    for port in node.plan.ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((node.plan.host, port))
            except OSError as error:
                raise ConfigError(
                    f"port {port}, which node {node.plan.id} needs, cannot be used: {error.strerror}"
                ) from error

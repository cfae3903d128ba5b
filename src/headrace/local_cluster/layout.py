"""The nodes of a cluster on one machine, their ports, and the settings that make them a cluster. No I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from headrace.base.errors import ConfigError

LOOPBACK = "127.0.0.1"
CLIENT_LISTENER, CONTROLLER_LISTENER = "PLAINTEXT", "CONTROLLER"
BROKER, CONTROLLER = "broker", "controller"
REPLICAS_MAX = 3
COMBINED_CONTROLLERS_MAX = 3  # controllers of a cluster of combined nodes
NODES_MAX = 50
PORT_MAX = 65_535
PORTS_PER_NODE = 2
HTTP_PORT_DISTANCE = 312  # from the first port to the HTTP port of node 1: 9404 with the usual 9092
# Options that follow from the layout; other values of them would break the cluster.
RESERVED_OPTIONS = frozenset(
    {
        "process.roles",
        "node.id",
        "broker.id",
        "listeners",
        "advertised.listeners",
        "controller.listener.names",
        "controller.quorum.voters",
        "controller.quorum.bootstrap.servers",
        "log.dir",
        "log.dirs",
        "metadata.log.dir",
        "headrace.http.listener",
    }
)


class NodePlan(Struct, frozen=True, kw_only=True):
    """A node with its roles and ports."""

    id: int
    host: str = LOOPBACK
    port: int = 0  # of the listener for clients; 0 if the node is no broker
    controller_port: int = 0  # of the listener for controllers; 0 if the node is no controller
    http_port: int = 0  # of /metrics and /health; 0 for none

    @property
    def is_broker(self) -> bool:
        return self.port > 0

    @property
    def is_controller(self) -> bool:
        return self.controller_port > 0

    @property
    def roles(self) -> list[str]:
        """Return the roles as process.roles names them."""
        return [role for role, is_in in ((BROKER, self.is_broker), (CONTROLLER, self.is_controller)) if is_in]

    @property
    def address(self) -> str:
        """Return the address for clients, or else the one for controllers, as host:port."""
        return f"{self.host}:{self.port or self.controller_port}"

    @property
    def ports(self) -> list[int]:
        return [port for port in (self.port, self.controller_port, self.http_port) if port]


class Layout(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster: its id, its nodes in the order of their ids, and the settings that the user gave for all of them."""

    cluster_id: str
    first_port: int
    nodes: list[NodePlan]
    settings: dict[str, str]

    @property
    def brokers(self) -> list[NodePlan]:
        return [node for node in self.nodes if node.is_broker]

    @property
    def bootstrap(self) -> str:
        """Return the addresses of all brokers for bootstrap.servers."""
        return bootstrap_servers(self.nodes)

    def node(self, node_id: int) -> NodePlan:
        """Return the node with this id; raise ConfigError if there is none."""
        for node in self.nodes:
            if node.id == node_id:
                return node
        raise ConfigError(
            f"no node {node_id} in this cluster; its nodes are {', '.join(str(n.id) for n in self.nodes)}"
        )

    def settings_of(self, node: NodePlan) -> dict[str, str]:
        """Return all settings of a node except log.dirs, by Kafka's names."""
        return {**node_settings(node, self.nodes), **self.settings}


def plan_nodes(brokers: int, controllers: int | None, first_port: int) -> list[NodePlan]:
    """Return the nodes of a new cluster; raise ConfigError if their ports would be too large.

    The brokers have the ids from 1. Without `controllers`, the first three are controllers too; otherwise the controllers are separate
    nodes with the next ids.
    """
    if controllers is None:
        voters = min(brokers, COMBINED_CONTROLLERS_MAX)
        return [
            plan_node(node_id, first_port, broker=True, controller=node_id <= voters)
            for node_id in range(1, brokers + 1)
        ]
    return [
        plan_node(node_id, first_port, broker=node_id <= brokers, controller=node_id > brokers)
        for node_id in range(1, brokers + controllers + 1)
    ]


def plan_node(node_id: int, first_port: int, *, broker: bool, controller: bool) -> NodePlan:
    """Return the plan of a node: each has a pair of ports, the second one for controllers, and an HTTP port."""
    port = first_port + PORTS_PER_NODE * (node_id - 1)
    http_port = first_port + HTTP_PORT_DISTANCE + node_id - 1
    if node_id > NODES_MAX:
        raise ConfigError(f"a local cluster has at most {NODES_MAX} nodes")
    if http_port > PORT_MAX:
        raise ConfigError(f"--port {first_port} is too large: node {node_id} would need port {http_port}")
    return NodePlan(
        id=node_id, port=port if broker else 0, controller_port=port + 1 if controller else 0, http_port=http_port
    )


def grow(layout: Layout, brokers: int) -> Layout:
    """Return the layout with more brokers; raise ConfigError if that would remove some."""
    there = len(layout.brokers)
    if brokers < there:
        raise ConfigError(
            f"the cluster has {there} brokers, and a broker cannot be removed by starting with --brokers {brokers}:"
            " `headrace cluster stop ID` stops one, `headrace cluster delete` removes the cluster"
        )
    first = max(node.id for node in layout.nodes) + 1
    added = [
        plan_node(node_id, layout.first_port, broker=True, controller=False)
        for node_id in range(first, first + brokers - there)
    ]
    return replace(layout, nodes=[*layout.nodes, *added])


def bootstrap_servers(nodes: Sequence[NodePlan]) -> str:
    return ",".join(node.address for node in nodes if node.is_broker)


def quorum_voters(nodes: Sequence[NodePlan]) -> str:
    """Return the value of controller.quorum.voters."""
    return ",".join(f"{node.id}@{node.host}:{node.controller_port}" for node in nodes if node.is_controller)


def node_settings(node: NodePlan, nodes: Sequence[NodePlan]) -> dict[str, str]:
    """Return the settings that make a node one of these nodes."""
    client, controller = f"{CLIENT_LISTENER}://{node.address}", f"{CONTROLLER_LISTENER}://{node.host}"
    listeners = [client] if node.is_broker else []
    if node.is_controller:
        listeners.append(f"{controller}:{node.controller_port}")
    return {
        "process.roles": ",".join(node.roles),
        "node.id": str(node.id),
        "listeners": ",".join(listeners),
        **({"advertised.listeners": client} if node.is_broker else {}),
        "controller.listener.names": CONTROLLER_LISTENER,
        "controller.quorum.voters": quorum_voters(nodes),
        "headrace.http.listener": f"{node.host}:{node.http_port}" if node.http_port else "",
        **replication_settings(sum(one.is_broker for one in nodes)),
    }


def replication_settings(brokers: int) -> dict[str, str]:
    """Return settings with which internal and new topics have up to three replicas and tolerate the loss of one."""
    replicas = min(brokers, REPLICAS_MAX)
    in_sync = str(max(1, replicas - 1))
    return {
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": in_sync,
        "default.replication.factor": str(replicas),
        "min.insync.replicas": in_sync,
    }


def check_settings(settings: Mapping[str, str]) -> None:
    """Raise ConfigError for a setting that the layout determines."""
    for name in sorted(settings.keys() & RESERVED_OPTIONS):
        raise ConfigError(f"-c {name}: it follows from the layout of the cluster and cannot be set")

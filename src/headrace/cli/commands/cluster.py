"""`headrace cluster …`: a cluster of background processes on this machine."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from msgspec.structs import replace

from headrace.base.errors import ConfigError
from headrace.cli.options import Json, SettingFlags, command_group, parse_pair
from headrace.cli.output import progress, show_json, show_table
from headrace.local_cluster.control import LocalCluster
from headrace.local_cluster.folder import ClusterFolder
from headrace.local_cluster.layout import NODES_MAX, PORT_MAX, Layout, check_settings, grow, plan_nodes
from headrace.local_cluster.node_process import BackgroundNode, NodeState
from headrace.local_cluster.status import ClusterStatus, NodeStatus, read_status
from headrace.node.configuration.settings import make_settings
from headrace.node.new_cluster.formatting import new_cluster_id

FOLDER = Path(".headrace-cluster")
BROKERS = 3
PORT = 9092
_MEGABYTE = 1_000_000

app = command_group()

Folder = Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the cluster: its layout, data and logs.")]
NodeNumber = Annotated[int, typer.Argument(metavar="ID", help="Id of a node, as `headrace cluster status` shows it.")]


@app.callback()
def _group() -> None:
    """Run a cluster on this machine: start, look at it, kill and pause nodes, stop."""


@app.command()
def start(
    brokers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=NODES_MAX,
            help=f"Number of brokers. Defaults to {BROKERS}, or to those that the cluster has; more are added to it.",
        ),
    ] = None,
    controllers: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=NODES_MAX,
            help="Number of separate controllers. Without it, the first three brokers are controllers.",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=1, max=PORT_MAX, help=f"Port of node 1; each further node takes the next two. Defaults to {PORT}."
        ),
    ] = None,
    flags: SettingFlags = None,
    folder: Folder = FOLDER,
) -> None:
    """Start a cluster, or its nodes that do not run.

    The nodes run in the background until `headrace cluster stop`.
    The data is kept between runs. Settings apply to all nodes, and to those that run already when they are started again.
    """
    at = ClusterFolder(folder)
    at.check_usable()
    settings = dict(parse_pair("-c", flag) for flag in flags or ())
    check_settings(settings)
    wanted = Wanted(brokers, controllers, port, settings)
    _check(_plan(at, wanted))  # before the folder is made
    at.path.mkdir(parents=True, exist_ok=True)
    with at.locked():
        layout = _plan(at, wanted)  # again: another command may have made or changed the cluster meanwhile
        is_changed = at.is_cluster and layout != at.load()
        cluster = LocalCluster(at, layout)
        cluster.check_ports()
        at.save(layout)
        running = [node for node in cluster.nodes if node.is_running]
        _start(cluster)
    if is_changed and running:
        print(f"Nodes {_ids(running)} ran already and keep their settings until they are started again.")
    for node in running:
        if node.state() is NodeState.PAUSED:
            print(f"Node {node.plan.id} is paused; `headrace cluster resume {node.plan.id}` continues it.")
    print(_next_steps(layout, folder))


class Wanted(NamedTuple):
    """The options of `start`; None for those that were not given."""

    brokers: int | None
    controllers: int | None
    port: int | None
    settings: dict[str, str]


def _plan(at: ClusterFolder, wanted: Wanted) -> Layout:
    """Return the layout of a new cluster, or that of the existing one with the wanted changes."""
    if at.is_cluster:
        return _change(at.load(), wanted)
    port = PORT if wanted.port is None else wanted.port
    brokers = BROKERS if wanted.brokers is None else wanted.brokers
    return Layout(
        cluster_id=new_cluster_id(random.SystemRandom()),
        first_port=port,
        nodes=plan_nodes(brokers, wanted.controllers, port),
        settings=wanted.settings,
    )


def _change(layout: Layout, wanted: Wanted) -> Layout:
    """Return the layout with more brokers and other settings; raise ConfigError for what cannot be changed."""
    separate = sum(node.is_controller and not node.is_broker for node in layout.nodes)
    if wanted.controllers not in (None, separate):
        there = f"{separate} separate controllers" if separate else "no separate controllers"
        raise ConfigError(
            f"--controllers {wanted.controllers}: the cluster was made with {there}, which cannot be changed"
        )
    if wanted.port not in (None, layout.first_port):
        raise ConfigError(
            f"--port {wanted.port}: the cluster was made with port {layout.first_port}, which cannot be changed"
        )
    if wanted.brokers is not None:
        layout = grow(layout, wanted.brokers)
    return replace(layout, settings={**layout.settings, **wanted.settings})


def _check(layout: Layout) -> None:
    """Raise ConfigError if the nodes could not start with their settings."""
    make_settings({**layout.settings_of(layout.nodes[0]), "log.dirs": "data"}, single_node=False)


def _start(cluster: LocalCluster) -> None:
    """Start the nodes with a bar on a terminal, and otherwise a line for each node as soon as it serves."""
    if not sys.stderr.isatty():
        cluster.start(lambda node: print(_serves(node), flush=True))
        return
    with progress("starting nodes", sum(not node.is_running for node in cluster.nodes)) as bar:
        started = cluster.start(lambda node: bar.advance(1))
    for node in started:
        print(_serves(node))


def _serves(node: BackgroundNode) -> str:
    process = node.process()
    pid = "" if process is None else f", process {process.pid}"
    return f"node {node.plan.id} ({' and '.join(node.plan.roles)}) serves on {node.plan.address}{pid}"


def _ids(nodes: list[BackgroundNode]) -> str:
    return ", ".join(str(node.plan.id) for node in nodes)


def _next_steps(layout: Layout, folder: Path) -> str:
    at = "" if layout.first_port == PORT else f" -b {layout.brokers[0].address}"
    where = _where(folder)
    victim = layout.brokers[-1].id
    return f"""
bootstrap.servers={layout.bootstrap}

Try this:

    headrace topics create orders --partitions 6{at}
    echo 'three apples' | headrace produce orders{at}
    headrace consume orders --exit{at}
    headrace cluster status{where}
    headrace cluster kill {victim}{where}         and        headrace cluster start{where}

The cluster runs until `headrace cluster stop{where}`; its data stays in {folder}.
"""


def _where(folder: Path) -> str:
    return "" if folder == FOLDER else f" --folder {folder}"


def _cluster(folder: Path) -> LocalCluster:
    at = ClusterFolder(folder)
    return LocalCluster(at, at.load())


@app.command()
def status(json: Json = False, folder: Folder = FOLDER) -> None:
    """Show the nodes, leaders and in-sync replicas."""
    cluster = _cluster(folder)
    found = read_status(cluster)
    if json:
        show_json(_as_json(cluster.layout, found))
        return
    show_table(
        ("node", "roles", "address", "process", "state", "quorum", "leads", "in sync", "out of sync", "memory", "CPU"),
        [_row(node) for node in found.nodes],
    )
    if found.problem:
        print(f"headrace: leaders and replicas are unknown: {found.problem}", file=sys.stderr)
    else:
        print(
            f"{found.partitions} partitions, {found.under_replicated} under-replicated, {found.without_leader} without leader"
        )


def _row(node: NodeStatus) -> tuple[object, ...]:
    quorum = None
    if node.plan.is_controller and node.is_quorum_leader is not None:
        quorum = "leader" if node.is_quorum_leader else "voter"
    return (
        node.plan.id,
        "+".join(node.plan.roles),
        node.plan.address,
        node.pid,
        node.state.value,
        quorum,
        node.leaders,
        node.in_sync,
        node.out_of_sync,
        None if node.memory_bytes is None else f"{node.memory_bytes / _MEGABYTE:.0f} MB",
        None if node.cpu_s is None else f"{node.cpu_s:.1f} s",
    )


def _as_json(layout: Layout, found: ClusterStatus) -> dict[str, Any]:
    return {
        "cluster_id": layout.cluster_id,
        "bootstrap_servers": layout.bootstrap,
        "partitions": found.partitions,
        "under_replicated_partitions": found.under_replicated,
        "partitions_without_leader": found.without_leader,
        "problem": found.problem or None,
        "nodes": [
            {
                "id": node.plan.id,
                "roles": node.plan.roles,
                "address": node.plan.address,
                "http": f"{node.plan.host}:{node.plan.http_port}" if node.plan.http_port else None,
                "pid": node.pid,
                "state": node.state.value,
                "is_quorum_leader": node.is_quorum_leader,
                "leaders": node.leaders,
                "in_sync": node.in_sync,
                "out_of_sync": node.out_of_sync,
                "memory_bytes": node.memory_bytes,
                "cpu_seconds": node.cpu_s,
            }
            for node in found.nodes
        ],
    }


@app.command()
def kill(node_id: NodeNumber, folder: Folder = FOLDER) -> None:
    """Kill a node with SIGKILL, as a crash would."""
    cluster = _cluster(folder)
    with cluster.folder.locked():
        cluster.kill(cluster.node(node_id))
    print(f"node {node_id} is killed; `headrace cluster start{_where(folder)}` starts it again")


@app.command()
def pause(node_id: NodeNumber, folder: Folder = FOLDER) -> None:
    """Pause a node with SIGSTOP.

    It keeps its connections, but does nothing.
    """
    node = _cluster(folder).node(node_id)
    if not node.pause():
        raise ConfigError(f"node {node_id} does not run")
    print(f"node {node_id} is paused; `headrace cluster resume {node_id}{_where(folder)}` continues it")


@app.command()
def resume(node_id: NodeNumber, folder: Folder = FOLDER) -> None:
    """Resume a paused node."""
    node = _cluster(folder).node(node_id)
    if not node.resume():
        raise ConfigError(f"node {node_id} does not run")
    print(f"node {node_id} runs")


@app.command()
def stop(
    node_id: Annotated[int | None, typer.Argument(metavar="[ID]", help="Stop only this node.")] = None,
    folder: Folder = FOLDER,
) -> None:
    """Stop the cluster or one node cleanly; the data is kept."""
    cluster = _cluster(folder)
    nodes = cluster.nodes if node_id is None else [cluster.node(node_id)]
    if not any(node.is_running for node in nodes):
        print("no node runs" if node_id is None else f"node {node_id} does not run")
        return
    with cluster.folder.locked():
        if node_id is None:
            cluster.stop(print)
        else:
            cluster.stop_node(nodes[0], print)
    print(f"`headrace cluster start{_where(folder)}` starts {'it' if node_id is None else 'the node'} again")


@app.command()
def delete(
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False, folder: Folder = FOLDER
) -> None:
    """Stop the cluster and remove its data."""
    cluster = _cluster(folder)
    if not yes:
        typer.confirm(f"Remove the cluster in {cluster.folder.path} with all its topics?", abort=True)
    with cluster.folder.locked():
        for node in cluster.nodes:
            if node.is_running:
                cluster.kill(node)
        cluster.folder.remove(cluster.layout)
    print(f"the cluster in {folder} is removed")

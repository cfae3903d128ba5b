"""CPU profile of one request: `python -m bench.profile PATH` (--help lists the paths).

The node runs in this process, the load in another; of a cluster, all three nodes run here, on one event loop. A first run
without the profiler measures the cost of a request. A second one with cProfile measures the shares, which are scaled to that
cost. The profiler's overhead is per call, so small functions look too expensive.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import os
import pstats
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from random import Random, SystemRandom

from bench.broker.fetch import Fetch
from bench.broker.produce import Produce
from bench.cluster.produce import ReplicatedProduce
from bench.line import Line, Options
from bench.lines import all_lines
from bench.load.generator import Outcome, Span, Target, run_load, target_of
from bench.load.produce import run_through
from bench.paths import WORK
from bench.systems.certificate import make_certificate
from bench.systems.clusters import NODES, REPLICAS, SETTINGS
from bench.systems.requests import (
    READY_S_MAX,
    RETRY_S,
    Connection,
    create_topic,
    describe_topic,
    new_producer_id,
    wait_until_served,
)
from bench.systems.servers import HEADRACE, TlsListener
from bench.transactions.lines import Transactional
from bench.transactions.load import run_transactions
from headrace.base.clock import SystemClock
from headrace.local_cluster.folder import format_data
from headrace.local_cluster.layout import NodePlan, node_settings
from headrace.node.configuration.settings import make_settings
from headrace.node.new_cluster.formatting import new_cluster_id
from headrace.node.node import Node, Ports
from headrace.storage.disk import DiskFiles
from headrace.testing.processes import LOOPBACK, free_port

PATHS = {
    "produce-small": "message-50",
    "produce-64k": "produce-64k",
    "produce-lz4": "lz4-64k",
    "produce-zstd": "zstd-64k",
    "produce-tls": "tls-produce-64k",
    "fetch": "fetch-1",
    "fetch-tls": "tls-fetch-1",
    "transactions": "transactions-10x8",
    "cluster-message": "cluster-message",
    "cluster-message-50": "cluster-message-50",
}
TOPIC = "profile"
IDLE = "method 'poll' of 'select.epoll'"  # excluded: the time is spent waiting
ROWS = 25
WARM_S = 0.3
BYTES_MAX = 2 * 10**9

Place = tuple[str, int, str]  # as in pstats: file, line, function


class InProcess:
    """A node in the measuring process; its data is deleted with its directory."""

    name = HEADRACE

    def __init__(self, port: int, tls: TlsListener) -> None:
        self.port = port
        self.tls = tls
        self.pid = os.getpid()

    def new_producer_id(self) -> tuple[int, int]:
        with Connection(self.port) as connection:
            return new_producer_id(connection)

    def create_topic(self, name: str, partitions: int) -> None:
        with Connection(self.port) as connection:
            create_topic(connection, name, partitions)
            wait_until_served(connection, name, partitions)

    def delete_topic(self, name: str) -> None:
        """Do nothing: the topic is deleted with the directory."""

    def close(self) -> None:
        """Do nothing: the caller owns the node."""


class InProcessCluster:
    """Three nodes in the measuring process; their data is deleted with their directory."""

    def __init__(self, plans: Sequence[NodePlan]) -> None:
        self._plans = plans

    def prepare(self, line: ReplicatedProduce, seconds: float) -> Callable[[], Outcome]:
        with Connection(self._plans[0].port) as connection:
            create_topic(connection, TOPIC, line.partitions, REPLICAS)
            deadline = time.monotonic() + READY_S_MAX
            while (state := describe_topic(connection, TOPIC)) is None or state.in_sync != [REPLICAS] * line.partitions:
                if time.monotonic() > deadline:
                    raise SystemExit(f"the topic is not in sync after {READY_S_MAX:.0f} s: {state}")
                time.sleep(RETRY_S)
        ports = tuple(self._plans[leader - 1].port for leader in state.leaders)
        return partial(run_load, line.load(TOPIC), Target(ports, (os.getpid(),)), Span(seconds, WARM_S, BYTES_MAX))


async def start_node(line: Line, seconds: float, directory: Path) -> tuple[list[Node], Callable[[], Outcome]]:
    port = free_port()
    certificate = make_certificate(directory / "certificate")
    if certificate is None:
        raise SystemExit("openssl is not installed; it is needed to make a certificate")
    tls = TlsListener(free_port(), certificate)
    settings = {
        "listeners": f"PLAINTEXT://{LOOPBACK}:{port},{tls.address}",
        "log.dirs": str(directory / "data"),
        "headrace.http.listener": "",
        **certificate.settings(),
    }
    node = await Node.start(make_settings(settings, single_node=True), _ports())
    return [node], await asyncio.to_thread(_prepare, line, InProcess(port, tls), seconds)


async def start_cluster(
    line: ReplicatedProduce, seconds: float, directory: Path
) -> tuple[list[Node], Callable[[], Outcome]]:
    plans = [NodePlan(id=node_id, port=free_port(), controller_port=free_port()) for node_id in range(1, NODES + 1)]
    cluster_id = new_cluster_id(SystemRandom())
    starting = []
    for plan in plans:
        data = directory / str(plan.id)
        format_data(data, plan.id, cluster_id)
        settings = {**node_settings(plan, plans), **SETTINGS, "log.dirs": str(data), "headrace.http.listener": ""}
        starting.append(Node.start(make_settings(settings, single_node=False), _ports()))
    nodes = await asyncio.gather(*starting)
    return nodes, await asyncio.to_thread(InProcessCluster(plans).prepare, line, seconds)


def _ports() -> Ports:
    return Ports(DiskFiles(), SystemClock(), Random(), asyncio.get_running_loop())


async def profile(path: str, seconds: float, directory: Path) -> tuple[float, pstats.Stats]:
    """Return the CPU time of one request in µs and the profile of the event loop under the same load."""
    line = all_lines()[PATHS[path]]
    start = (
        start_cluster(line, seconds, directory)
        if isinstance(line, ReplicatedProduce)
        else start_node(line, seconds, directory)
    )
    nodes, run = await start
    try:
        bare = await asyncio.to_thread(run)
        profiler = cProfile.Profile()
        profiler.enable()
        await asyncio.to_thread(run)
        profiler.disable()
    finally:
        await asyncio.gather(*(node.kill() if len(nodes) > 1 else node.stop() for node in nodes))
    return bare.cpu_us_per_request, pstats.Stats(profiler)


def _prepare(line: Line, system: InProcess, seconds: float) -> Callable[[], Outcome]:
    if isinstance(line, Transactional):
        transactions = line.prepare(system, TOPIC)
        return lambda: run_transactions(target_of(system), transactions, Span(seconds, WARM_S))[0]
    assert isinstance(line, Produce | Fetch)
    load = line.prepare(system, TOPIC, Options())
    span = Span(seconds, WARM_S, 0 if isinstance(line, Fetch) else BYTES_MAX)
    return partial(run_through, system, load, span, tls=line.tls)


def table(cost_us: float, stats: pstats.Stats) -> list[tuple[str, float, float]]:
    """Return function, own µs and cumulative µs per request, most expensive first."""
    entries: dict[Place, tuple[int, int, float, float, object]] = stats.stats  # type: ignore[attr-defined]
    busy = {place: entry for place, entry in entries.items() if IDLE not in place[2]}
    scale = cost_us / sum(own for _, _, own, _, _ in busy.values())
    rows = [(_name(place), own * scale, whole * scale) for place, (_, _, own, whole, _) in busy.items()]
    return sorted(rows, key=lambda row: -row[1])[:ROWS]


def _name(place: Place) -> str:
    file, line, function = place
    if file == "~":
        return function.strip("<>")
    parts = Path(file).with_suffix("").parts
    for root in ("headrace", "asyncio"):
        if root in parts:
            first = len(parts) - 1 - parts[::-1].index(root)
            return f"{'.'.join(parts[first:])}:{line} {function}"
    return f"{Path(file).name}:{line} {function}"


def main(command_line: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.profile", description=__doc__)
    parser.add_argument("path", choices=list(PATHS), help="The kind of request to profile.")
    parser.add_argument(
        "--seconds", type=float, default=2.0, help="Apply the load for this long in each run (default: %(default)g)."
    )
    arguments = parser.parse_args(command_line)
    directory = WORK / "profile"
    shutil.rmtree(directory, ignore_errors=True)
    try:
        cost_us, stats = asyncio.run(profile(arguments.path, arguments.seconds, directory))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(f"{arguments.path}: {cost_us:.1f} CPU µs per request; per function, own and cumulative:")
    for name, own, whole in table(cost_us, stats):
        print(f"{own:8.1f} {whole:8.1f}  {name}")


if __name__ == "__main__":
    main(sys.argv[1:])

"""A broker returns and copies what was written while it was away."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from bench.errors import BenchFailed
from bench.line import Figure, Measurement, Options
from bench.load.fallback import cpu_seconds
from bench.load.frames import ALL_ACKS, KIB, make_batch, records_that_fit
from bench.load.generator import Span, Target, run_load
from bench.load.produce import IN_FLIGHT, produce_load
from bench.systems.clusters import NODES, REPLICAS, BrokerCluster
from bench.systems.requests import READY_S_MAX
from bench.systems.servers import KAFKA, System

PARTITIONS = 6
RETURNING = NODES  # id of the node that is stopped
FILL_S_MAX = 120.0
LOOK_S = 0.002


@dataclass(frozen=True)
class CatchUp:
    """The time counts from the first byte that the returned node copies, so that the start of its process does not matter."""

    name: str = "cluster-catch-up"
    title: str = "a broker returns and copies what it has missed, 64 KB batches in 6 partitions"
    figures: tuple[Figure, ...] = (
        Figure("mb_per_s", "MB/s", True, goal=1.0),
        Figure("cpu_s_per_gb", "CPU s/GB of the cluster", False, digits=2),
    )
    against: tuple[str, ...] = (KAFKA,)
    alone: bool = False
    on_cluster: bool = True
    warm_rounds: int = 1

    def measure(self, system: System, topic: str, options: Options) -> Measurement:
        assert isinstance(system, BrokerCluster)
        system.create_topic(topic, PARTITIONS)
        try:
            system.stop(RETURNING)
            missed = _fill(system, topic, options)
            with ThreadPoolExecutor(1) as threads:
                starting = threads.submit(system.process(RETURNING).start)
                seconds, cpu_s = _watch(system, topic, missed)
                starting.result()
            system.wait_until_in_sync(topic, PARTITIONS)
        finally:
            system.delete_topic(topic)
        return Measurement(
            {"mb_per_s": missed / seconds / 1e6, "cpu_s_per_gb": cpu_s / (missed / 1e9)},
            {"bytes": missed, "seconds": seconds},
        )


def _fill(system: BrokerCluster, topic: str, options: Options) -> int:
    """Write to all partitions while the node is away, and return the bytes that it misses."""
    alive = system.node_ids[:-1]
    leaders = _wait_for_leaders(system, topic)
    batch = make_batch(records_that_fit(64 * KIB, KIB), KIB)
    load = produce_load(topic, [batch] * PARTITIONS, PARTITIONS, IN_FLIGHT, ALL_ACKS)
    target = Target(
        tuple(system.process(leader).port for leader in leaders), tuple(system.process(node).pid for node in alive)
    )
    run_load(load, target, Span(FILL_S_MAX, 0.0, options.bytes_max // REPLICAS))
    return system.log_bytes(alive[0], topic)


def _wait_for_leaders(system: BrokerCluster, topic: str) -> list[int]:
    """Wait until the other nodes lead all partitions alone, and return the leaders."""
    deadline = time.monotonic() + READY_S_MAX
    while True:
        state = system.topic(topic)
        if all(state.leaders) and RETURNING not in state.leaders and max(state.in_sync) < REPLICAS:
            return state.leaders
        if time.monotonic() > deadline:
            raise BenchFailed(f"node {RETURNING} was stopped, but {topic} has {state}")
        time.sleep(LOOK_S)


def _watch(system: BrokerCluster, topic: str, missed: int) -> tuple[float, float]:
    """Wait until the returned node has all bytes; return the time since its first one, and the CPU time of all nodes meanwhile."""
    began = cpu_s = 0.0
    deadline = time.monotonic() + READY_S_MAX
    while True:
        copied = system.log_bytes(RETURNING, topic)
        if copied and not began:
            began, cpu_s = time.monotonic(), cpu_seconds(system.pids)
        if copied >= missed:
            return time.monotonic() - began, cpu_seconds(system.pids) - cpu_s
        if time.monotonic() > deadline:
            raise BenchFailed(f"the returned node has {copied} of {missed} bytes after {READY_S_MAX:.0f} s")
        time.sleep(LOOK_S)

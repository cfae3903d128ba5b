"""Transactions and offset commits when the coordinators' logs have three replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from bench.errors import BenchFailed
from bench.groups.frames import (
    FIND_COORDINATOR_VERSION,
    commit_error_at,
    commit_frame,
    commit_response,
    wait_for_coordinator,
)
from bench.groups.lines import CONNECTIONS
from bench.line import Figure, Measurement, Options
from bench.load.generator import Load, Target, run_load
from bench.systems.clusters import BrokerCluster
from bench.systems.servers import KAFKA, System
from bench.transactions.frames import TRANSACTION_KEY, init_producer
from bench.transactions.lines import RECORDS, VALUE_BYTES
from bench.transactions.load import Transactions, run_transactions
from headrace.protocol.messages.find_coordinator import FindCoordinatorRequest

GROUP_KEY = 0  # key type of FindCoordinator


def coordinators(cluster: BrokerCluster, key_type: int, keys: Sequence[str]) -> list[int]:
    """Return the ids of the nodes that coordinate the groups or transactional ids; all coordinators must be available."""
    request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=list(keys))
    found = cluster.connection().request(request, FIND_COORDINATOR_VERSION).coordinators
    nodes = {one.key: one.node_id for one in found if not one.error_code}
    if nodes.keys() != set(keys):
        raise BenchFailed(f"only {len(nodes)} of {len(keys)} coordinators are available")
    return [nodes[key] for key in keys]


def create_internal_topics(cluster: BrokerCluster) -> None:
    """Create both topics of the coordinators and wait until they are in sync everywhere."""
    find = FindCoordinatorRequest(key_type=GROUP_KEY, coordinator_keys=["warm-up"])
    cluster.connection().request(find, FIND_COORDINATOR_VERSION)
    find = FindCoordinatorRequest(key_type=TRANSACTION_KEY, coordinator_keys=["warm-up"])
    cluster.connection().request(find, FIND_COORDINATOR_VERSION)
    for name in ("__consumer_offsets", "__transaction_state"):
        cluster.wait_until_in_sync(name, 50)


@dataclass(frozen=True)
class ReplicatedTransactions:
    """Producers that write transactions back to back, spread over all coordinators."""

    name: str
    title: str
    producers: int
    figures: tuple[Figure, ...]
    against: tuple[str, ...] = (KAFKA,)
    alone: bool = False
    on_cluster: bool = True
    warm_rounds: int = 1

    def measure(self, system: System, topic: str, options: Options) -> Measurement:
        assert isinstance(system, BrokerCluster)
        create_internal_topics(system)
        system.create_topic(topic, 1)
        load = Transactions(topic, 1, self.producers, RECORDS, VALUE_BYTES)
        try:
            nodes = coordinators(system, TRANSACTION_KEY, load.transactional_ids)
            for name, node in zip(load.transactional_ids, nodes, strict=True):
                init_producer(system.connection(node), name)
            ports = (*system.target(topic).ports, *(system.process(node).port for node in nodes))
            outcome, retries = run_transactions(Target(ports, system.pids), load, options.span)
        finally:
            system.delete_topic(topic)
        figures = {
            "transactions_per_s": outcome.requests_per_s,
            "p50_us": outcome.p50_us,
            "p99_us": outcome.p99_us,
            "cpu_us_per_transaction": outcome.cpu_us_per_request,
        }
        return Measurement(figures, {**outcome.as_json(), "retries": retries})


@dataclass(frozen=True)
class ReplicatedCommits:
    """OffsetCommit of many groups, each on a connection to its coordinator."""

    name: str
    title: str
    figures: tuple[Figure, ...]
    against: tuple[str, ...] = (KAFKA,)
    alone: bool = False
    on_cluster: bool = True
    warm_rounds: int = 1

    def measure(self, system: System, topic: str, options: Options) -> Measurement:
        assert isinstance(system, BrokerCluster)
        create_internal_topics(system)
        system.create_topic(topic, 1)
        groups = [f"{topic}-{number}" for number in range(CONNECTIONS)]
        try:
            nodes = coordinators(system, GROUP_KEY, groups)
            for group, node in zip(groups, nodes, strict=True):
                wait_for_coordinator(system.connection(node), [group], topic)
            response_bytes = len(commit_response(topic))
            load = Load(
                frames=[[commit_frame(group, topic)] for group in groups],
                in_flight=1,
                payload_bytes=1,
                error_at=commit_error_at(topic),
                response_min=response_bytes,
                response_max=response_bytes,
            )
            target = Target(tuple(system.process(node).port for node in nodes), system.pids)
            outcome = run_load(load, target, options.span)
        finally:
            system.delete_topic(topic)
        return Measurement({figure.key: getattr(outcome, figure.key) for figure in self.figures}, outcome.as_json())

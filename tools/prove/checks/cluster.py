"""Clusters of three nodes."""

from __future__ import annotations

import sys

from testkit import network_namespaces
from testkit.kafka_peer import available

from tools.prove.cluster.faults import run_in_namespaces
from tools.prove.cluster.migration import migrate_and_return
from tools.prove.cluster.mixed import check_mixture, headrace_among_kafka, kafka_among_headrace
from tools.prove.cluster.survival import survive
from tools.prove.commands import run as run_command
from tools.prove.examples import run
from tools.prove.registry import check, print_progress, random_seed, require, rounds_or

FAULT_ROUNDS = 200
TESTS_S_MAX = 1800.0


@check(
    "cluster-survives",
    "When one of three brokers is killed under load of confluent-kafka and of the Java client, with acks=all, nothing "
    "is lost or duplicated, and Kafka's tools show the in-sync replicas shrink and grow back",
)
def cluster_survives() -> str:
    require(available())
    confluent = run("kill_a_broker.py").splitlines()[-1].partition("  ")[2].strip()
    print_progress(f"confluent-kafka: {confluent}")
    return f"confluent-kafka: {confluent}; {survive(print_progress)}"


@check(
    "cluster-under-faults",
    "In 200 rounds of kill -9, pauses and network cuts of random nodes of a cluster, the active controller included, "
    "under idempotent and transactional load and groups of both protocols that read and commit, no anomaly is found, "
    "no group goes back behind its committed offsets or misses a record, and its assignments become complete again",
)
def cluster_under_faults() -> str:
    require(network_namespaces.missing())
    return run_in_namespaces(rounds_or(FAULT_ROUNDS), random_seed(), print_progress)


@check(
    "mixed-cluster",
    "A real Kafka broker joins the controllers of Headrace, and a Headrace broker those of Kafka: each leads and "
    "follows partitions of the others, is killed and returns, and every acknowledged record is read once; the nodes "
    "of a Kafka cluster are replaced by Headrace one by one, in the same directories, and by Kafka again, under "
    "writes, transactions and groups: nothing is lost or duplicated, no write is refused, and the groups continue",
)
def mixed_cluster() -> str:
    require(available())
    figures = []
    for mix in (kafka_among_headrace, headrace_among_kafka):
        with mix() as mixture:
            figures.append(check_mixture(mixture, print_progress))
    figures += [migrate_and_return(random_seed(), print_progress, dynamic_quorum=one) for one in (False, True)]
    return "; ".join(figures)


@check(
    "cluster-bad-input",
    "With damaged logs and metadata, full and empty disks, reused ids, wrong clocks, impossible requests, peers "
    "without authority, and all nodes killed at once, a cluster logs what is wrong, answers with the right error and "
    "loses nothing acknowledged, in simulation and with real processes",
)
def cluster_bad_input() -> str:
    done = run_command(
        [sys.executable, "-m", "pytest", "-m", "long or not long", "-p", "no:randomly", "tests/cluster"],
        timeout_s=TESTS_S_MAX,
        environment={"CI": "true"},
    )
    summary = done.stdout.strip().splitlines()[-1]
    assert "passed" in summary, f"no test was run: {summary}"
    return summary

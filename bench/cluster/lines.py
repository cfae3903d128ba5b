"""The lines of the cluster chapter with their goals, in execution order."""

from __future__ import annotations

from bench.cluster.catch_up import CatchUp
from bench.cluster.coordinators import ReplicatedCommits, ReplicatedTransactions
from bench.cluster.failover import ControllerFailover, LeaderFailover
from bench.cluster.produce import ReplicatedProduce
from bench.cluster.topics import IdlePartitions, ManyTopics
from bench.line import Figure, Line
from bench.load.frames import KIB, records_that_fit

NO_WORSE = 1.0
LATENCY_GOAL = 0.7
THROUGHPUT = (
    Figure("mb_per_s", "MB/s", True, goal=1.5),
    Figure("cpu_s_per_gb", "CPU s/GB of the cluster", False, goal=0.5, digits=2),
)
CPU_US_PER_REQUEST = Figure("cpu_us_per_request", "CPU µs/request of the cluster", False, digits=1)


def cluster_lines() -> list[Line]:
    return [
        ReplicatedProduce(
            "cluster-produce-64k", "acks=all, three replicas: 64 KB batches, 6 connections × 6 partitions", THROUGHPUT,
            records_that_fit(64 * KIB, KIB), KIB, 6, 6,
        ),
        ReplicatedProduce(
            "cluster-produce-1m", "acks=all, three replicas: 1 MB batches, 3 connections × 3 partitions", THROUGHPUT,
            records_that_fit(1024 * KIB, KIB), KIB, 3, 3,
        ),
        ReplicatedProduce(
            "cluster-message", "acks=all, three replicas: one message of 100 B, one connection",
            (
                Figure("p50_us", "p50 µs", False, goal=LATENCY_GOAL),
                Figure("p99_us", "p99 µs", False, goal=LATENCY_GOAL),
                CPU_US_PER_REQUEST,
            ),
            1, 100, 1, 1, in_flight=1,
        ),
        ReplicatedProduce(
            "cluster-message-50", "acks=all, three replicas: one message of 100 B, 50 connections × 6 partitions",
            (Figure("requests_per_s", "requests/s", True), Figure("p99_us", "p99 µs", False), CPU_US_PER_REQUEST),
            1, 100, 50, 6, in_flight=1,
        ),
        ReplicatedTransactions(
            "cluster-transactions", "three replicas: transactions of 100 records of 100 B, 8 producers", 8,
            (
                Figure("transactions_per_s", "transactions/s", True, goal=NO_WORSE),
                Figure("p50_us", "commit p50 µs", False),
                Figure("p99_us", "commit p99 µs", False),
                Figure("cpu_us_per_transaction", "CPU µs/transaction of the cluster", False),
            ),
        ),
        ReplicatedCommits(
            "cluster-commits", "three replicas: OffsetCommit of one offset, 50 connections, each a group",
            (
                Figure("requests_per_s", "requests/s", True, goal=NO_WORSE),
                Figure("p99_us", "p99 µs", False),
                CPU_US_PER_REQUEST,
            ),
        ),
        LeaderFailover("cluster-kill-leader", "kill -9 of a leader under load of confluent-kafka", False),
        LeaderFailover(
            "cluster-kill-both", "kill -9 of a leader that is also the active controller", True
        ),
        ControllerFailover(),
        CatchUp(),
        ManyTopics(),
        IdlePartitions(),
    ]  # fmt: skip

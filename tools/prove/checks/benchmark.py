"""Speed compared with real Kafka, confluent-kafka and Spark's own connector, on one machine in one run."""

from __future__ import annotations

import sys

from bench.lines import BROKER, CLIENT, CLUSTER, PIPELINES, SPARK, TRANSACTIONS
from bench.pipelines.topic_reader import reader_missing
from bench.spark.lines import spark_missing
from testkit import kafka_peer as peers
from testkit.spark_connector import connector_missing

from tools.prove.commands import run
from tools.prove.registry import check, print_progress, require

BENCHMARK_S_MAX = 7200.0
TABLE_LINES_MAX = 100
SPARK_ROUNDS = "2"  # each takes eight minutes


@check(
    "benchmark",
    "Benchmark against Apache Kafka in one interleaved run, as a table of ratios: produce, fetch, latency, "
    "memory, groups and startup",
)
def benchmark() -> str:
    return _publish(BROKER)


@check(
    "benchmark-transactions",
    "Benchmark against Apache Kafka in one interleaved run: transactions per second, commit latency and "
    "read_committed fetches",
)
def benchmark_transactions() -> str:
    return _publish(TRANSACTIONS)


@check(
    "benchmark-cluster",
    "Benchmark of three nodes against three nodes of Apache Kafka in one interleaved run: replicated produce, transactions "
    "and commits, failover of leaders and controllers, catching up, many topics, idle nodes",
)
def benchmark_cluster() -> str:
    return _publish(CLUSTER)


@check(
    "benchmark-client",
    "Benchmark of the client against confluent-kafka, writing and reading Arrow data, on Headrace and on Kafka, "
    "as a table of ratios",
)
def benchmark_client() -> str:
    return _publish(CLIENT)


@check(
    "benchmark-spark",
    'Benchmark of format("headrace") against Spark\'s own Kafka connector, as a table of ratios: reading and '
    "writing, batch and streaming, on Headrace and on Kafka; and the startup of a driver",
)
def benchmark_spark() -> str:
    return _publish(SPARK, spark_missing() or connector_missing(), "--rounds", SPARK_ROUNDS)


@check(
    "benchmark-pipelines",
    "Benchmark of the demo's three queries, exactly once on Headrace, against the same SQL with Spark's own "
    "connector on Kafka: rows per second and latency from event to result; also the demo's time to its first "
    "result, and its memory",
)
def benchmark_pipelines() -> str:
    return _publish(PIPELINES, spark_missing() or connector_missing() or reader_missing())


def _publish(chapter: str, missing: str | None = None, *options: str) -> str:
    """Run one chapter of the benchmark and publish its table; return the line that counts the goals met."""
    require(missing, peers.available())
    command = [sys.executable, "-m", "bench", chapter, "--publish", *options]
    done = run(command, timeout_s=BENCHMARK_S_MAX, may_fail=True)
    lines = done.stdout.rstrip().splitlines()
    for line in lines[-TABLE_LINES_MAX:]:
        print_progress(line)
    assert done.returncode == 0, (
        f"{' '.join(command[1:])} exited with {done.returncode}: {lines[-1] if lines else 'no output'}"
    )
    verdict = next(line for line in lines if "goals met" in line)
    return f"{verdict.strip()}; the published table is in docs/performance.md"

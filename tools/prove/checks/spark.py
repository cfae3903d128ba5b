"""Spark jobs with format("headrace"): same rows as its own connector, on a cluster, and exactly once under kills."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from pathlib import Path

from testkit.kafka_cluster import KafkaCluster
from testkit.kafka_peer import KafkaPeer, available
from testkit.spark_connector import connector_missing

from headrace.testing.process_cluster import ClusterProcesses
from headrace.testing.processes import NodeProcess
from tools.prove.pipelines.demo_cluster import demo_on_a_cluster
from tools.prove.registry import check, print_progress, random_seed, require, rounds_or
from tools.prove.spark import speculation, topics
from tools.prove.spark.kills import Target, brokers_in_turn, stream_under_kills
from tools.prove.spark.programs import Program, missing
from tools.prove.spark.standalone import Standalone, environment
from tools.prove.spark.stream import Stream
from tools.prove.transactions.reading import COMMITTED, UNCOMMITTED, read_all, undecided

SAME_ROWS_S_MAX = 1800.0
KILLS = 40
WORKERS = 2
SPECULATION_S_MAX = 600.0
BROKER_EVENTS = 300_000  # enough for the demo to run while each of its brokers is killed
BROKERS = 3
NUMBERS, NUMBERS_PER_BATCH = 4_800, 400


@check(
    "spark-same-rows",
    'A PySpark job that changes format("kafka") to format("headrace") gets the same rows, batch and streaming, '
    "also after a restart from its checkpoint; on Headrace and on Kafka, and with Spark's own connector on "
    "Headrace",
)
def spark_same_rows() -> str:
    require(missing(), available(), connector_missing())
    with tempfile.TemporaryDirectory(prefix="spark-same-rows-") as folder, NodeProcess() as node, KafkaPeer() as peer:
        log = Path(folder, "spark.log")
        program = Program("tools.prove.spark.same_rows", node.bootstrap, peer.bootstrap, log=log)
        reported = 0

        def show_jobs() -> None:
            nonlocal reported
            for event in program.events[reported:]:
                if event["name"] == "job":
                    print_progress(f"{event['job']}: {event['rows']} rows")
            reported = len(program.events)

        try:
            done = program.wait_for_event("done", SAME_ROWS_S_MAX, show_jobs)
        finally:
            show_jobs()
            program.close()
        wrong = [line for line in node.log_text().splitlines() if "Traceback" in line or " ERROR " in line]
        assert not wrong, f"the node logged errors: {wrong[:3]}"
    return f"{done['jobs']} jobs in four ways, {done['rows']} rows, all the same"


@check(
    "spark-cluster",
    "A standalone Spark cluster of a master and two workers runs the same windowed job, exactly once, with only "
    "spark.master changed; workers are killed and one is added during the run, and the output equals that of a "
    "batch job, each row once",
)
def spark_cluster() -> str:
    require(missing())
    base_ms = int(time.time() * 1000) - 7_200_000
    with (
        tempfile.TemporaryDirectory(prefix="spark-cluster-") as folder,
        NodeProcess() as node,
        Standalone(Path(folder), WORKERS) as cluster,
        Stream(node.bootstrap, replicas=1, base_ms=base_ms, master=cluster.url, environment=environment()) as stream,
    ):
        first, second = cluster.workers
        stream.wait_for_batches(2)
        cluster.wait_until(
            lambda: first.has_executor and second.has_executor, stream.poll, "an executor on each worker"
        )
        stream.wait_for_batches(2)
        print_progress(f"{stream.batches} batches on two workers; killing the first")
        first.kill()
        stream.wait_for_batches(5)
        third = cluster.add_worker()
        cluster.wait_until(lambda: third.has_executor, stream.poll, "an executor on the worker that was added")
        print_progress(f"{stream.batches} batches; a third worker has an executor; killing the second")
        second.kill()
        stream.wait_for_batches(5)
        return (
            f"2 of 3 workers killed, {stream.starts} driver, {stream.failures} failures of the query, {stream.finish()}"
        )


@check(
    "spark-speculation",
    "When Spark runs tasks twice at the same time (spark.speculation, two workers that it treats as two "
    "machines), whichever attempt finishes first, each record is written once and no transaction stays open",
)
def spark_speculation() -> str:
    require(missing())
    with (
        tempfile.TemporaryDirectory(prefix="spark-speculation-") as name,
        NodeProcess() as node,
        Standalone(Path(name), WORKERS, on_one_host=False) as cluster,
    ):
        folder = Path(name)
        attempts = folder / "attempts"
        attempts.mkdir()
        route = speculation.Route(
            cluster.url, node.bootstrap, "in", "out", str(folder / "checkpoint"), str(attempts), NUMBERS_PER_BATCH
        )
        topics.create(node.bootstrap, {route.source: speculation.PARTITIONS, route.target: speculation.PARTITIONS})
        numbers: list[topics.NewRecord] = [(None, b"%d" % number, [], 0) for number in range(NUMBERS)]
        topics.write(node.bootstrap, route.source, numbers, speculation.PARTITIONS)
        program = Program(
            "tools.prove.spark.speculation", route.text(), log=folder / "spark.log", environment=environment()
        )
        try:
            done = program.wait_for_event("done", SPECULATION_S_MAX)
            program.finish()
        finally:
            program.close()
        tasks, twice = speculation.runs_of_tasks(attempts)
        assert twice, f"none of {tasks} tasks was run twice"
        places = [(route.target, partition) for partition in range(speculation.PARTITIONS)]
        seen = {
            isolation: Counter(
                int(value) for part in read_all(node.bootstrap, places, isolation).values() for _, value in part
            )
            for isolation in (COMMITTED, UNCOMMITTED)
        }
        wrong = Counter(range(NUMBERS)) - seen[COMMITTED] + (seen[COMMITTED] - Counter(range(NUMBERS)))
        assert not wrong, f"{wrong.total()} of {NUMBERS} are lost or duplicated: {list(wrong)[:5]}"
        assert not undecided(node.bootstrap, places), "transactions are open"
        hidden = seen[UNCOMMITTED].total() - NUMBERS
    return (
        f"{done['batches']} batches, {twice} of {tasks} tasks run twice, {NUMBERS} records once each, {hidden} hidden"
    )


@check(
    "spark-exactly-once",
    "During 40 kills of drivers, Python workers and brokers, a windowed stream with the exactly-once sink writes, "
    "under read_committed, the output of one batch job, each row once; on Headrace, on Kafka, and on three Kafka "
    "nodes",
)
def spark_exactly_once() -> str:
    require(missing(), available())
    kills, seed = rounds_or(KILLS), random_seed()
    print_progress(f"seed {seed}")
    figures = []
    with NodeProcess() as node:
        target = Target("Headrace", node.bootstrap, [node], 1)
        figures.append(stream_under_kills(target, kills, seed, print_progress))
        wrong = [line for line in node.log_text().splitlines() if "Traceback" in line or " ERROR " in line]
        assert not wrong, f"seed {seed}: the node logged errors: {wrong[:3]}"
    print_progress(figures[-1])
    with KafkaPeer() as peer:
        target = Target("Kafka", peer.bootstrap, [peer], 1)
        figures.append(stream_under_kills(target, kills, seed, print_progress))
    print_progress(figures[-1])
    with KafkaCluster() as peers:
        target = Target(f"Kafka on {len(peers.nodes)} nodes", peers.bootstrap, peers.nodes, peers.replicas)
        figures.append(stream_under_kills(target, kills, seed, print_progress))
    return f"{'; '.join(figures)} (seed {seed})"


@check(
    "spark-on-a-cluster",
    "On three brokers, each of which is killed in turn and returns, an exactly-once windowed stream, whose drivers and "
    "workers are killed too, writes the output of one batch job, each row once, and the demo (BROKERS=3 make run) ends "
    "by itself and passes its own check of all results",
)
def spark_on_a_cluster() -> str:
    require(missing())
    seed = random_seed()
    with ClusterProcesses(BROKERS) as cluster:
        target = Target("the stream", cluster.bootstrap, cluster.nodes, cluster.replicas)
        kills = 2 * BROKERS  # of each broker, and one of a driver or worker after each
        stream = stream_under_kills(target, kills, seed, print_progress, brokers_in_turn)
        wrong = [
            line
            for node in cluster.nodes
            for line in node.log_text().splitlines()
            if "Traceback" in line or " ERROR " in line
        ]
        assert not wrong, f"seed {seed}: the nodes logged errors: {wrong[:3]}"
    print_progress(stream)
    return f"{stream}; {demo_on_a_cluster(BROKER_EVENTS, BROKERS, print_progress)} (seed {seed})"

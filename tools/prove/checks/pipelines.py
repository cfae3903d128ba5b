"""Pipelines: the demo under kills and to its end, the examples, a full disk, and the same pipeline elsewhere."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from testkit.kafka_peer import KafkaPeer, available

from headrace.testing.processes import NodeProcess, free_port
from tools.prove.commands import run
from tools.prove.pipelines.demo_kills import RIGHT, demo_under_kills
from tools.prove.pipelines.full_disk import mount_error, pipeline_on_a_full_disk
from tools.prove.pipelines.moved_pipeline import MovedPipeline
from tools.prove.registry import check, print_progress, random_seed, require, rounds_or
from tools.prove.spark.programs import missing
from tools.prove.spark.standalone import Standalone

KILLS = 20
EVENTS = 1_000_000
EVENTS_S_MAX = 1800.0
EXAMPLES_S_MAX = 600.0
EXAMPLES = "tests/pipelines/test_pipelines_examples_spark.py"
WORKERS = 2


@check(
    "demo-under-kills",
    "After make run is killed with -9 at 20 random moments (node, generator, driver, Spark, itself, all at once) "
    "and restarted, topics and Parquet contain the effect of each event exactly once",
)
def demo_killed() -> str:
    require(missing())
    seed = random_seed()
    print_progress(f"seed {seed}")
    return demo_under_kills(rounds_or(KILLS), seed, print_progress)


@check("demo-of-a-million", "make run with EVENTS=1000000 ends by itself, and its own check of all results passes")
def demo_of_a_million() -> str:
    require(missing())
    with tempfile.TemporaryDirectory(prefix="demo-of-a-million-") as folder:
        command = [sys.executable, "-m", "headrace", "demo", "--plain", "--events", str(EVENTS)]
        done = run([*command, "--port", str(free_port())], cwd=Path(folder), timeout_s=EVENTS_S_MAX)
    lines = done.stdout.splitlines()
    for line in lines[-10:]:
        print_progress(line)
    assert RIGHT in done.stdout, f"the results of the demo are not right: {lines[-12:]}"
    summary = next(line for line in lines if " events: " in line and "clicks and" in line)
    return f"{summary}, {lines[-1].split(';')[0]}"


@check("examples-of-pipelines", "The five example pipelines pass their tests")
def examples_of_pipelines() -> str:
    require(missing())
    command = [sys.executable, "-m", "pytest", "-p", "no:randomly", EXAMPLES]
    done = run(command, timeout_s=EXAMPLES_S_MAX, environment={"CI": "true"})
    summary = done.stdout.strip().splitlines()[-1]
    assert "5 passed" in summary, summary
    return summary


@check(
    "pipeline-elsewhere",
    "A pipeline gives the same results on a standalone Spark cluster and with a real Kafka, by changing only "
    "--master and --bootstrap-server",
)
def pipeline_elsewhere() -> str:
    require(missing(), available())
    with (
        tempfile.TemporaryDirectory(prefix="pipeline-elsewhere-") as folder,
        NodeProcess() as node,
        KafkaPeer() as peer,
        Standalone(Path(folder), WORKERS) as cluster,
    ):
        pipeline = MovedPipeline(Path(folder))
        rows = {}
        for server, bootstrap in (("Headrace", node.bootstrap), ("Kafka", peer.bootstrap)):
            for engine, master in (("local", "local[2]"), ("standalone", cluster.url)):
                found = pipeline.run(bootstrap, master)
                rows[f"{server}, {engine}"] = found
                print_progress(f"{server}, {engine}: {sum(map(len, found.values()))} records in {len(found)} topics")
        pipeline.check(rows)
        total = sum(map(len, next(iter(rows.values())).values()))
    return f"{len(rows)} places ({'; '.join(rows)}), {total} records each, all the same and as expected"


@check(
    "pipeline-on-a-full-disk",
    "When the disk of a checkpoint becomes full while a pipeline runs, its queries report it and wait; when there "
    "is space again they resume, and topic and Parquet contain everything once",
)
def pipeline_on_full_disk() -> str:
    require(missing(), mount_error())
    with NodeProcess() as node:
        return pipeline_on_a_full_disk(node.bootstrap, print_progress)

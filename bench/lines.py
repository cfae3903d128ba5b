"""All lines by chapter, in execution order.

Each chapter runs and is published separately: a full run takes an hour.
"""

from __future__ import annotations

from bench.broker.lines import broker_lines
from bench.client.lines import client_lines
from bench.cluster.lines import cluster_lines
from bench.line import Line
from bench.pipelines.lines import pipeline_lines
from bench.spark.lines import spark_lines
from bench.transactions.lines import transaction_lines

BROKER, TRANSACTIONS, CLUSTER, CLIENT, SPARK, PIPELINES = (
    "broker",
    "transactions",
    "cluster",
    "client",
    "spark",
    "pipelines",
)


def all_lines() -> dict[str, Line]:
    return {line.name: line for lines in chapters().values() for line in lines}


def chapters() -> dict[str, list[Line]]:
    return {
        BROKER: broker_lines(),
        TRANSACTIONS: transaction_lines(),
        CLUSTER: cluster_lines(),
        CLIENT: client_lines(),
        SPARK: spark_lines(),
        PIPELINES: pipeline_lines(),
    }

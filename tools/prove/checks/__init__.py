"""One module per subject; importing this package fills the registry."""

from __future__ import annotations

from tools.prove.checks import (
    benchmark,
    client,
    clients,
    clones,
    compaction,
    differential,
    dump_log,
    examples,
    garbage,
    groups,
    kafka_tools,
    kill_nine,
    pipelines,
    retention,
    schemas,
    simulation,
    spark,
    suites,
    swapping,
    transactions,
)

__all__ = [
    "benchmark",
    "client",
    "clients",
    "clones",
    "compaction",
    "differential",
    "dump_log",
    "examples",
    "garbage",
    "groups",
    "kafka_tools",
    "kill_nine",
    "pipelines",
    "retention",
    "schemas",
    "simulation",
    "spark",
    "suites",
    "swapping",
    "transactions",
]

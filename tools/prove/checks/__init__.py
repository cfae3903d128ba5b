"""The named checks, one module per subject; importing this package fills the registry."""

from __future__ import annotations

from tools.prove.checks import (
    benchmark,
    client,
    clients,
    clones,
    cluster,
    differential,
    examples,
    groups,
    hostile,
    kafka_tools,
    metrics,
    pipelines,
    schemas,
    security,
    simulation,
    spark,
    storage,
    suites,
    transactions,
)

__all__ = [
    "benchmark",
    "client",
    "clients",
    "clones",
    "cluster",
    "differential",
    "examples",
    "groups",
    "hostile",
    "kafka_tools",
    "metrics",
    "pipelines",
    "schemas",
    "security",
    "simulation",
    "spark",
    "storage",
    "suites",
    "transactions",
]

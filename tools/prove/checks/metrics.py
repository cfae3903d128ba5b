"""Metrics that dashboards written for Kafka read."""

from __future__ import annotations

import tempfile
from pathlib import Path

from tools.prove.registry import WORK, check, print_progress


@check(
    "metrics-for-dashboards",
    "After a minute of load, every metric that public Kafka dashboards read exists, with the labels and values "
    "that jmx_exporter reports for the same load on Kafka",
)
def metrics_for_dashboards() -> str:
    from tools.prove.dashboards import LOAD_S, differences, documented, on_headrace, on_kafka

    WORK.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="dashboards-", dir=WORK) as directory:
        print_progress(f"{LOAD_S:.0f} s of load on Kafka")
        theirs = on_kafka(Path(directory), LOAD_S)
        print_progress(f"{LOAD_S:.0f} s of load on Headrace")
        ours = on_headrace(Path(directory), LOAD_S)
    found = list(differences(ours, theirs))
    assert not found, "\n".join(found)
    return f"{len(documented())} metrics compared, no difference"

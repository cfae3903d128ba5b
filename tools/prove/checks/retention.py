"""Retention, and configs changed at runtime."""

from __future__ import annotations

import tempfile
from pathlib import Path

from testkit.kafka_peer import available

from tools.prove.registry import NotRun, check


@check(
    "retention-and-reload",
    "Retention by time, size and log start, segment rolling and changed options take effect on a running node, as "
    "observed with Kafka's tools",
)
def retention_and_reload() -> str:
    reason = available()
    if reason is not None:
        raise NotRun(reason)
    from tools.prove.retention import watch

    with tempfile.TemporaryDirectory(prefix="headrace-retention-") as directory:
        return watch(Path(directory))

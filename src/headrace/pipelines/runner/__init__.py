"""Runs pipelines: a long-lived driver that starts queries, supervises them and reports their status."""

from __future__ import annotations

from headrace.pipelines.runner.driver import RUNTIME, Driver, SparkLost
from headrace.pipelines.runner.runs import AlreadyRunning, Run, Runs
from headrace.pipelines.runner.status import QueryStatus

__all__ = ["RUNTIME", "AlreadyRunning", "Driver", "QueryStatus", "Run", "Runs", "SparkLost"]

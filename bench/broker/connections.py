"""A thousand connections: their cost while idle, and throughput and latency when all are active."""

from __future__ import annotations

import shutil
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace

from bench.broker.produce import Produce
from bench.line import Figure, Measurement, Options
from bench.systems.processes import allow_open_files, idle_percent, rss_bytes
from bench.systems.requests import Connection
from bench.systems.servers import KAFKA, Broker, Process, System
from headrace.protocol.messages.api_versions import ApiVersionsRequest

SPARE_FILES = 500  # file descriptors of either side besides those of the connections
API_VERSIONS_VERSION = 3
WARM_CONNECTIONS = 50
SETTLE_S = 2.0


@dataclass(frozen=True)
class IdleConnections:
    """Idle connections to a freshly started process.

    A process that was under load has free memory to reuse, which would hide the cost of the connections.
    """

    name: str = "idle-1000"
    title: str = "1,000 idle connections"
    figures: tuple[Figure, ...] = (
        Figure("kb_per_connection", "KB per connection", False, goal=1.0, digits=1),
        Figure("rss_mb", "resident memory, MB", False, goal=1.0),
        Figure("cpu_percent", "CPU, % of a core", False, goal=1.0, digits=2),
    )
    against: tuple[str, ...] = (KAFKA,)
    alone: bool = True
    warm_rounds: int = 0

    def measure(self, system: System, topic: str, options: Options) -> Measurement:
        assert isinstance(system, Broker)
        allow_open_files(options.connections + SPARE_FILES)
        directory = options.work / f"{system.name}-{topic}"
        process = system.spawn(directory.absolute())
        try:
            process.start()
            return _measure_idle(process, options)
        finally:
            process.kill()
            process.close()
            shutil.rmtree(directory, ignore_errors=True)


def _measure_idle(process: Process, options: Options) -> Measurement:
    settle = min(SETTLE_S, options.idle_seconds)
    with ExitStack() as stack:
        _connect(process, WARM_CONNECTIONS, stack)
    time.sleep(settle)
    before = rss_bytes(process.pid)
    with ExitStack() as stack:
        _connect(process, options.connections, stack)
        time.sleep(settle)
        after = rss_bytes(process.pid)
        cpu_percent = idle_percent(process.pid, options.idle_seconds)
    figures = {
        "kb_per_connection": max(0, after - before) / options.connections / 1000,
        "rss_mb": after / 1e6,
        "cpu_percent": cpu_percent,
    }
    return Measurement(figures, {"rss_before": before, "connections": options.connections})


def _connect(process: Process, count: int, stack: ExitStack) -> None:
    """Open connections as clients do, starting with ApiVersions."""
    for _ in range(count):
        connection = stack.enter_context(Connection(process.port))
        connection.request(
            ApiVersionsRequest(client_software_name="bench", client_software_version="1"), API_VERSIONS_VERSION
        )


@dataclass(frozen=True)
class ActiveConnections:
    """A thousand connections with one small request in flight on each."""

    load: Produce
    name: str = "active-1000"
    title: str = "one message of 100 B, 1,000 connections"
    figures: tuple[Figure, ...] = (
        Figure("requests_per_s", "requests/s", True, goal=1.0),
        Figure("p99_ms", "p99 ms", False, goal=1.0, digits=1),
        Figure("cpu_us_per_request", "CPU µs/request", False, digits=1),
    )
    against: tuple[str, ...] = (KAFKA,)
    alone: bool = False
    warm_rounds: int = 1

    def measure(self, system: System, topic: str, options: Options) -> Measurement:
        allow_open_files(options.connections + SPARE_FILES)
        outcome = replace(self.load, connections=options.connections).run(system, topic, options)
        figures = {
            "requests_per_s": outcome.requests_per_s,
            "p99_ms": outcome.p99_us / 1000,
            "cpu_us_per_request": outcome.cpu_us_per_request,
        }
        return Measurement(figures, outcome.as_json())

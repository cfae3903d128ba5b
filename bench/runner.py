"""One interleaved run: for every line, each round measures one system after the other."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from testkit import kafka_peer as peers

from bench.errors import BenchFailed, CannotRun
from bench.line import Line, Measurement, Options
from bench.load.frames import ALL_ACKS, make_batch
from bench.load.generator import Span, run_load
from bench.load.produce import produce_load, run_through
from bench.native.programs import compiled_program
from bench.systems.certificate import make_certificate
from bench.systems.clients import MeasuredClient, MeasuresClients
from bench.systems.clusters import NODES, BrokerCluster, spawn_headrace_nodes, spawn_kafka_nodes
from bench.systems.servers import CEILING, HEADRACE, KAFKA, Broker, Ceiling, System, spawn_headrace, spawn_kafka
from headrace.testing.processes import ProcessFailed

WARM_CONNECTIONS = 10
WARM_BATCH_RECORDS = 60
WARM_ROUNDS = 2  # length of each warm-up, in rounds


@dataclass
class Results:
    """The counted rounds, by line and system."""

    rounds: dict[str, dict[str, list[Measurement]]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)  # systems and lines that did not run, with the reason
    failed: dict[str, str] = field(default_factory=dict)  # lines that failed, with the reason

    def add(self, line: str, system: str, measurement: Measurement) -> None:
        self.rounds.setdefault(line, {}).setdefault(system, []).append(measurement)


def available_systems(work: Path, *, with_kafka: bool) -> tuple[list[System], dict[str, str]]:
    """Return the systems that can run on this machine, and the reasons why others are skipped."""
    certificate = make_certificate(work / "certificate")
    found: list[System] = [
        Broker(HEADRACE, work / "headrace", spawn_headrace, certificate),
        BrokerCluster(HEADRACE, spawn_headrace_nodes),
    ]
    skipped = {}
    reason = peers.available() if with_kafka else "excluded by --no-kafka"
    if reason is None:
        found.append(Broker(KAFKA, work / "kafka", spawn_kafka, certificate))
        found.append(BrokerCluster(KAFKA, spawn_kafka_nodes))
    else:
        skipped[KAFKA] = reason
    if compiled_program("ceiling") is not None:
        found.append(Ceiling(work / "ceiling"))
    else:
        skipped[CEILING] = "no C compiler"
    return found, skipped


class Runner:
    def __init__(self, systems: Sequence[System], options: Options, rounds: int, log: Callable[[str], None]) -> None:
        self._systems = systems
        self._options = options
        self._rounds = rounds
        self._log = log
        self._warm_for_tls: set[int] = set()  # pids of the processes that are warmed up for TLS
        self._measured_clients: list[System] = []
        self._on_cluster = False  # whether the last line was about clusters
        self.results = Results()

    def run(self, lines: Sequence[Line]) -> Results:
        try:
            for line in lines:
                try:
                    self._run_line(line)
                except CannotRun as reason:
                    self._log(f"{line.name} is skipped: {reason}")
                    self.results.rounds.pop(line.name, None)
                    self.results.skipped[line.name] = str(reason)
                except (BenchFailed, ProcessFailed) as error:
                    self._log(f"{line.name} failed: {error}")
                    self.results.rounds.pop(line.name, None)
                    self.results.failed[line.name] = str(error)
                    self._close_all()  # their state is unknown
        finally:
            self._close_all()
        return self.results

    def _run_line(self, line: Line) -> None:
        if line.alone or _on_cluster(line) != self._on_cluster:
            self._close_all()
        self._on_cluster = _on_cluster(line)
        systems = self._systems_of(line)
        rounds = min(self._rounds, getattr(line, "rounds_max", self._rounds))
        for number in range(line.warm_rounds + rounds):
            is_counted = number >= line.warm_rounds
            for system in systems:
                server = system.server if isinstance(system, MeasuredClient) else system
                if not line.alone and isinstance(server, Broker | BrokerCluster) and not server.is_running:
                    self._warm(server)
                if getattr(line, "tls", False) and system.pid not in self._warm_for_tls:
                    assert isinstance(system, Broker)
                    self._warm(system, tls=True)
                    self._warm_for_tls.add(system.pid)
                os.sync()  # pending writes of other systems must not slow this one down
                began = time.monotonic()
                measurement = line.measure(system, f"{line.name}-{number:02}", self._options)
                if is_counted:
                    self.results.add(line.name, system.name, measurement)
                figures = ", ".join(f"{key} {value:.4g}" for key, value in measurement.figures.items())
                phase = f"round {number - line.warm_rounds + 1}" if is_counted else "warm-up"
                self._log(f"{line.name} {phase} {system.name}: {figures} ({time.monotonic() - began:.1f} s)")

    def _systems_of(self, line: Line) -> list[System]:
        if not isinstance(line, MeasuresClients):
            wanted = [system for system in self._systems if system.name in (HEADRACE, *line.against)]
            return [system for system in wanted if isinstance(system, BrokerCluster) == _on_cluster(line)]
        servers = {system.name: system for system in self._systems if isinstance(system, Broker)}
        measured_clients = line.measured_clients(servers)
        self._measured_clients += measured_clients
        return measured_clients

    def _warm(self, broker: Broker | BrokerCluster, *, tls: bool = False) -> None:
        """Send small and large requests before measuring: the JVM compiles hot code."""
        topic = "warm-up"
        for records, value_bytes in ((1, 100), (WARM_BATCH_RECORDS, 1024)):
            span = Span(self._options.seconds * WARM_ROUNDS, 0.0, self._options.bytes_max)
            batches = [make_batch(records, value_bytes)] * WARM_CONNECTIONS
            if isinstance(broker, BrokerCluster):
                broker.create_topic(topic, NODES)
                run_load(produce_load(topic, batches, NODES, 1, ALL_ACKS), broker.target(topic), span)
            else:
                broker.create_topic(topic, 1)
                run_through(broker, produce_load(topic, batches, 1, 1), span, tls=tls)
            broker.delete_topic(topic)

    def _close_all(self) -> None:
        for system in (*self._measured_clients, *self._systems):
            system.close()
        self._measured_clients.clear()


def _on_cluster(line: Line) -> bool:
    """Return whether the line measures clusters instead of single servers."""
    return getattr(line, "on_cluster", False)

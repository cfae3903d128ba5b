"""One interleaved run: for every line, each round measures one contestant after the other."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from testkit import kafka_peer as peers

from bench import native
from bench.certificate import make_certificate
from bench.contestants import CEILING, HEADRACE, KAFKA, Broker, Ceiling, Contestant, spawn_headrace, spawn_kafka
from bench.frames import make_batch
from bench.line import Line, Measured, Options
from bench.load import Span
from bench.measured_clients import MeasuredClient
from bench.produce import produce_load, run_through
from bench.wire import BenchFailed, CannotRun
from headrace.testing.processes import ProcessFailed

WARM_CONNECTIONS = 10
WARM_BATCH_RECORDS = 60
WARM_ROUNDS = 2  # length of each warm-up, in rounds


@dataclass
class Results:
    """The counted rounds, by line and contestant."""

    rounds: dict[str, dict[str, list[Measured]]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)  # contestants and lines that did not run, with the reason
    failed: dict[str, str] = field(default_factory=dict)  # lines that were started, with what went wrong

    def add(self, line: str, contestant: str, measured: Measured) -> None:
        self.rounds.setdefault(line, {}).setdefault(contestant, []).append(measured)


def contestants(work: Path, *, with_kafka: bool) -> tuple[list[Contestant], dict[str, str]]:
    """Return the available contestants, and the reasons why others are skipped."""
    certificate = make_certificate(work / "certificate")
    found: list[Contestant] = [Broker(HEADRACE, work / "headrace", spawn_headrace, certificate)]
    skipped = {}
    reason = peers.available() if with_kafka else "left out with --no-kafka"
    if reason is None:
        found.append(Broker(KAFKA, work / "kafka", spawn_kafka, certificate))
    else:
        skipped[KAFKA] = reason
    if native.program("ceiling") is not None:
        found.append(Ceiling(work / "ceiling"))
    else:
        skipped[CEILING] = "no C compiler"
    return found, skipped


class Runner:
    def __init__(
        self, taking_part: Sequence[Contestant], options: Options, rounds: int, tell: Callable[[str], None]
    ) -> None:
        self._taking_part = taking_part
        self._options = options
        self._rounds = rounds
        self._tell = tell
        self._warm_by_tls: set[int] = set()  # processes that are warmed up for TLS
        self._measured_clients: list[Contestant] = []
        self.results = Results()

    def run(self, lines: Sequence[Line]) -> Results:
        try:
            for line in lines:
                try:
                    self._run_line(line)
                except CannotRun as reason:
                    self._tell(f"{line.name} is left out: {reason}")
                    self.results.rounds.pop(line.name, None)
                    self.results.skipped[line.name] = str(reason)
                except (BenchFailed, ProcessFailed) as error:
                    self._tell(f"{line.name} failed: {error}")
                    self.results.rounds.pop(line.name, None)
                    self.results.failed[line.name] = str(error)
                    self._close_all()  # their state is unknown
        finally:
            self._close_all()
        return self.results

    def _run_line(self, line: Line) -> None:
        if line.alone:
            self._close_all()
        taking_part = self._contestants(line)
        rounds = min(self._rounds, getattr(line, "rounds_max", self._rounds))
        for number in range(line.warm_rounds + rounds):
            counts = number >= line.warm_rounds
            for contestant in taking_part:
                server = contestant.server if isinstance(contestant, MeasuredClient) else contestant
                if not line.alone and isinstance(server, Broker) and not server.is_running:
                    self._warm(server)
                if getattr(line, "tls", False) and contestant.pid not in self._warm_by_tls:
                    assert isinstance(contestant, Broker)
                    self._warm(contestant, tls=True)
                    self._warm_by_tls.add(contestant.pid)
                os.sync()  # pending writes of others must not slow down this contestant
                began = time.monotonic()
                measured = line.measure(contestant, f"{line.name}-{number:02}", self._options)
                if counts:
                    self.results.add(line.name, contestant.name, measured)
                figures = ", ".join(f"{key} {value:.4g}" for key, value in measured.figures.items())
                what = f"round {number - line.warm_rounds + 1}" if counts else "warm-up"
                self._tell(f"{line.name} {what} {contestant.name}: {figures} ({time.monotonic() - began:.1f} s)")

    def _contestants(self, line: Line) -> list[Contestant]:
        if not hasattr(line, "measured_clients"):
            return [one for one in self._taking_part if one.name in (HEADRACE, *line.against)]
        measured_clients: list[Contestant] = line.measured_clients(
            {one.name: one for one in self._taking_part if isinstance(one, Broker)}
        )
        self._measured_clients += measured_clients
        return measured_clients

    def _warm(self, broker: Broker, *, tls: bool = False) -> None:
        """Send small and large requests before measuring: the JVM compiles hot code."""
        topic = "warm-up"
        for records, value_bytes in ((1, 100), (WARM_BATCH_RECORDS, 1024)):
            broker.open_topic(topic, 1)
            load = produce_load(topic, [make_batch(records, value_bytes)] * WARM_CONNECTIONS, 1, 1)
            span = Span(self._options.seconds * WARM_ROUNDS, 0.0, self._options.bytes_max)
            run_through(broker, load, span, tls=tls)
            broker.drop_topic(topic)

    def _close_all(self) -> None:
        for contestant in (*self._measured_clients, *self._taking_part):
            contestant.close()
        self._measured_clients.clear()

"""Produce lines: throughput, latency, and memory afterwards."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bench.line import Figure, Measurement, Options
from bench.load.frames import make_batch
from bench.load.generator import Load, Outcome
from bench.load.produce import IN_FLIGHT, produce_load, run_through
from bench.systems.servers import CEILING, KAFKA, Broker, System
from headrace.records.compression import Codec


@dataclass(frozen=True)
class Produce:
    name: str
    title: str
    figures: tuple[Figure, ...]
    records: int
    value_bytes: int
    connections: int
    partitions: int
    in_flight: int = IN_FLIGHT
    idempotent: bool = False
    codec: Codec = Codec.NONE
    tls: bool = False
    against: tuple[str, ...] = (KAFKA, CEILING)
    alone: bool = False
    warm_rounds: int = 1

    def prepare(self, system: System, topic: str, options: Options) -> Load:
        """Create the topic and return the load."""
        system.create_topic(topic, self.partitions)
        if not self.idempotent:
            batch = make_batch(self.records, self.value_bytes, codec=self.codec)
            return produce_load(topic, [batch] * self.connections, self.partitions, self.in_flight)
        batches = [
            make_batch(self.records, self.value_bytes, *system.new_producer_id()) for _ in range(self.connections)
        ]
        load = produce_load(topic, batches, self.partitions, self.in_flight)
        batch_at = load.frames[0][0].index(batches[0].data)
        return replace(load, batch_at=batch_at, records=self.records)

    def run(self, system: System, topic: str, options: Options) -> Outcome:
        load = self.prepare(system, topic, options)
        try:
            return run_through(system, load, options.span, tls=self.tls)
        finally:
            system.delete_topic(topic)

    def measure(self, system: System, topic: str, options: Options) -> Measurement:
        outcome = self.run(system, topic, options)
        return Measurement({figure.key: getattr(outcome, figure.key) for figure in self.figures}, outcome.as_json())


@dataclass(frozen=True)
class Memory:
    """Resident memory of the processes that served all previous lines, after one more load."""

    load: Produce
    name: str = "memory"
    title: str = "resident memory after the load"
    figures: tuple[Figure, ...] = (Figure("rss_mb", "MB", False, goal=1 / 8),)
    against: tuple[str, ...] = (KAFKA,)
    alone: bool = False
    warm_rounds: int = 0

    def measure(self, system: System, topic: str, options: Options) -> Measurement:
        assert isinstance(system, Broker)
        outcome = self.load.run(system, topic, options)
        return Measurement({"rss_mb": system.rss_bytes() / 1e6}, outcome.as_json())

"""Produce lines: throughput, latency, and memory afterwards."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bench.contestants import CEILING, KAFKA, Broker, Contestant
from bench.frames import Batch, make_batch, produce_answer, produce_error_at, produce_frame
from bench.line import IN_FLIGHT, Figure, Measured, Options
from bench.load import Load, Outcome, Span, run_load
from headrace.records.compression import Codec


def produce_load(topic: str, batches: list[Batch], partitions: int, in_flight: int) -> Load:
    """Return a load with one connection per batch, with partitions assigned in turn."""
    answer_bytes = len(produce_answer(topic))
    return Load(
        frames=[[produce_frame(topic, number % partitions, batch)] for number, batch in enumerate(batches)],
        in_flight=in_flight,
        payload_bytes=batches[0].plain_size,
        error_at=produce_error_at(topic),
        response_min=answer_bytes,
        response_max=answer_bytes,
    )


def run_through(contestant: Contestant, load: Load, span: Span, *, tls: bool) -> Outcome:
    """Run the load through the plain listener or the TLS listener."""
    if not tls:
        return run_load(load, contestant.port, contestant.pid, span)
    door = contestant.tls
    return run_load(replace(load, tls=door.certificate.public), door.port, contestant.pid, span)


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

    def prepare(self, contestant: Contestant, topic: str, options: Options) -> Load:
        """Create the topic and return the load."""
        contestant.open_topic(topic, self.partitions)
        if not self.idempotent:
            batch = make_batch(self.records, self.value_bytes, codec=self.codec)
            return produce_load(topic, [batch] * self.connections, self.partitions, self.in_flight)
        batches = [
            make_batch(self.records, self.value_bytes, *contestant.new_producer_id()) for _ in range(self.connections)
        ]
        load = produce_load(topic, batches, self.partitions, self.in_flight)
        batch_at = load.frames[0][0].index(batches[0].data)
        return replace(load, batch_at=batch_at, records=self.records)

    def run(self, contestant: Contestant, topic: str, options: Options) -> Outcome:
        load = self.prepare(contestant, topic, options)
        try:
            return run_through(contestant, load, options.span, tls=self.tls)
        finally:
            contestant.drop_topic(topic)

    def measure(self, contestant: Contestant, topic: str, options: Options) -> Measured:
        outcome = self.run(contestant, topic, options)
        return Measured({figure.key: getattr(outcome, figure.key) for figure in self.figures}, outcome.as_json())


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

    def measure(self, contestant: Contestant, topic: str, options: Options) -> Measured:
        assert isinstance(contestant, Broker)
        outcome = self.load.run(contestant, topic, options)
        return Measured({"rss_mb": contestant.rss_bytes() / 1e6}, outcome.as_json())

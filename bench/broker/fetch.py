"""Fetches from the page cache."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bench.line import Figure, Measurement, Options
from bench.load.frames import (
    FETCH_RESPONSE_SLACK_BYTES,
    KIB,
    Batch,
    fetch_error_at,
    fetch_frame,
    fetch_response,
    make_batch,
    produce_frame,
    records_that_fit,
)
from bench.load.generator import Load, Span, run_load, target_of
from bench.load.produce import IN_FLIGHT, produce_load, run_through
from bench.systems.servers import KAFKA, System

FETCH_BATCHES = 16  # batches per fetch, together about 1 MB
FILL_S_MAX = 60.0


@dataclass(frozen=True)
class Fetch:
    """Fetches from one partition per connection, written before and read repeatedly from the page cache."""

    name: str
    title: str
    figures: tuple[Figure, ...]
    connections: int
    tls: bool = False
    against: tuple[str, ...] = (KAFKA,)
    alone: bool = False
    warm_rounds: int = 1

    def prepare(self, system: System, topic: str, options: Options) -> Load:
        """Create and fill the topic and return the load that reads it."""
        batch = make_batch(records_that_fit(64 * KIB, KIB), KIB)
        fetches = options.fetch_bytes // self.connections // (batch.size * FETCH_BATCHES)
        system.create_topic(topic, self.connections)
        self._fill(system, topic, batch, fetches)
        return self._load(topic, batch, fetches)

    def measure(self, system: System, topic: str, options: Options) -> Measurement:
        load = self.prepare(system, topic, options)
        try:
            outcome = run_through(system, load, Span(options.seconds, options.span.warm), tls=self.tls)
        finally:
            system.delete_topic(topic)
        return Measurement({figure.key: getattr(outcome, figure.key) for figure in self.figures}, outcome.as_json())

    def _fill(self, system: System, topic: str, batch: Batch, fetches: int) -> None:
        """Fill partition by partition: in one load, the connections would progress unevenly."""
        for partition in range(self.connections):
            load = produce_load(topic, [batch], 1, IN_FLIGHT)
            load = replace(load, frames=[[produce_frame(topic, partition, batch)]])
            bytes_max = fetches * FETCH_BATCHES * batch.size
            run_load(load, target_of(system), Span(FILL_S_MAX, 0.0, bytes_max))

    def _load(self, topic: str, batch: Batch, fetches: int) -> Load:
        payload = FETCH_BATCHES * batch.size
        offsets = [number * FETCH_BATCHES * batch.records for number in range(fetches)]
        empty_bytes = len(fetch_response(topic))
        return Load(
            frames=[
                [fetch_frame(topic, partition, offset, payload) for offset in offsets]
                for partition in range(self.connections)
            ],
            in_flight=1,
            payload_bytes=payload,
            error_at=fetch_error_at(topic),
            response_min=empty_bytes + payload,
            response_max=empty_bytes + payload + FETCH_RESPONSE_SLACK_BYTES,
        )

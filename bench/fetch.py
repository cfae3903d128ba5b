"""Fetches from the page cache."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bench.contestants import KAFKA, Contestant
from bench.frames import Batch, fetch_answer, fetch_error_at, fetch_frame, make_batch, produce_frame, records_that_fit
from bench.line import IN_FLIGHT, KIB, Figure, Measured, Options
from bench.load import Load, Span, run_load
from bench.produce import produce_load, run_through

FETCH_BATCHES = 16  # batches per fetch, together about 1 MB
SLACK_BYTES = 16  # by which responses may differ besides the records: a length of one to four bytes, absent tags
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

    def prepare(self, contestant: Contestant, topic: str, options: Options) -> Load:
        """Create and fill the topic and return the load that reads it."""
        batch = make_batch(records_that_fit(64 * KIB, KIB), KIB)
        fetches = options.fetch_bytes // self.connections // (batch.size * FETCH_BATCHES)
        contestant.open_topic(topic, self.connections)
        self._fill(contestant, topic, batch, fetches)
        return self._load(topic, batch, fetches)

    def measure(self, contestant: Contestant, topic: str, options: Options) -> Measured:
        load = self.prepare(contestant, topic, options)
        try:
            outcome = run_through(contestant, load, Span(options.seconds, options.span.warm), tls=self.tls)
        finally:
            contestant.drop_topic(topic)
        return Measured({figure.key: getattr(outcome, figure.key) for figure in self.figures}, outcome.as_json())

    def _fill(self, contestant: Contestant, topic: str, batch: Batch, fetches: int) -> None:
        """Fill partition by partition: in one load, the connections would progress unevenly."""
        for partition in range(self.connections):
            load = produce_load(topic, [batch], 1, IN_FLIGHT)
            load = replace(load, frames=[[produce_frame(topic, partition, batch)]])
            bytes_max = fetches * FETCH_BATCHES * batch.size
            run_load(load, contestant.port, contestant.pid, Span(FILL_S_MAX, 0.0, bytes_max))

    def _load(self, topic: str, batch: Batch, fetches: int) -> Load:
        payload = FETCH_BATCHES * batch.size
        offsets = [number * FETCH_BATCHES * batch.records for number in range(fetches)]
        bare = len(fetch_answer(topic))
        return Load(
            frames=[
                [fetch_frame(topic, partition, offset, payload) for offset in offsets]
                for partition in range(self.connections)
            ],
            in_flight=1,
            payload_bytes=payload,
            error_at=fetch_error_at(topic),
            response_min=bare + payload,
            response_max=bare + payload + SLACK_BYTES,
        )

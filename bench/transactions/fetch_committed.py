"""Fetches of transactional records, some of them aborted, with read_uncommitted and with read_committed.

Both get the same batches; read_committed responses also list the aborted transactions to skip.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from bench.errors import BenchFailed
from bench.line import Figure, Measurement, Options
from bench.load.frames import FETCH_RESPONSE_SLACK_BYTES, KIB, fetch_error_at, fetch_frame, fetch_response, make_batch
from bench.load.generator import Load, Span, run_load, target_of
from bench.systems.requests import READY_S_MAX, Connection, end_offset
from bench.systems.servers import KAFKA, Broker, System
from bench.transactions.frames import BlockingProducer
from headrace.records.control import TransactionMarker, build_marker

RECORDS = 100  # records of 1 KB per transaction
ABORTED_OF = 10  # one in this many is aborted; a fetch reads this many whole transactions, about 1 MB
PRODUCERS = 8  # used in turn, so that none waits for its previous transaction to complete
PART_OF_BYTES = 2  # divisor of the other fetch lines' bytes: writing is slow, as each transaction waits for its marker


@dataclass(frozen=True)
class FetchCommitted:
    name: str = "fetch-committed"
    title: str = "fetch 1 KB records of transactions, every tenth aborted, 1 connection, 1 MB per fetch"
    figures: tuple[Figure, ...] = (
        Figure("mb_per_s", "read_committed MB/s", True, goal=1.2),
        Figure("uncommitted_mb_per_s", "read_uncommitted MB/s", True),
        Figure("share", "committed / uncommitted", True, digits=2),
        Figure("cpu_s_per_gb", "read_committed CPU s/GB", False, digits=2),
    )
    against: tuple[str, ...] = (KAFKA,)
    alone: bool = False
    warm_rounds: int = 1

    def measure(self, system: System, topic: str, options: Options) -> Measurement:
        assert isinstance(system, Broker)
        system.create_topic(topic, 1)
        try:
            payload = ABORTED_OF * (make_batch(RECORDS, KIB).size + _marker_bytes())
            fetches = max(2, options.fetch_bytes // PART_OF_BYTES // payload)
            fill(system.connection, topic, fetches * ABORTED_OF)
            span = Span(options.seconds, options.span.warm)
            loads = [_load(topic, payload, fetches, committed=committed) for committed in (False, True)]
            plain, committed = (run_load(load, target_of(system), span) for load in loads)
        finally:
            system.delete_topic(topic)
        figures = {
            "mb_per_s": committed.mb_per_s,
            "uncommitted_mb_per_s": plain.mb_per_s,
            "share": committed.mb_per_s / plain.mb_per_s,
            "cpu_s_per_gb": committed.cpu_s_per_gb,
        }
        return Measurement(figures, committed.as_json())


def fill(connection: Connection, topic: str, transactions: int) -> None:
    """Write the transactions one after the other, so that offsets are known: a batch, its marker, the next batch."""
    producers = [BlockingProducer(connection, f"{topic}-{number}") for number in range(min(PRODUCERS, transactions))]
    batch = make_batch(RECORDS, KIB, 0, 0, transactional=True)
    for number in range(transactions):
        producer = producers[number % len(producers)]
        producer.write(topic, batch)
        producer.end(commit=(number + 1) % ABORTED_OF != 0)
        _wait_for(connection, topic, (number + 1) * (RECORDS + 1))


def _wait_for(connection: Connection, topic: str, offset: int) -> None:
    deadline = time.monotonic() + READY_S_MAX
    while (reached := end_offset(connection, topic)) < offset:
        if time.monotonic() > deadline:
            raise BenchFailed(f"{topic} ends at offset {reached} after {READY_S_MAX:.0f} s: a marker is missing")


def _marker_bytes() -> int:
    return len(build_marker(TransactionMarker(True, 0), producer_id=0, producer_epoch=0, timestamp=0))


def _load(topic: str, payload: int, fetches: int, *, committed: bool) -> Load:
    offsets = [number * ABORTED_OF * (RECORDS + 1) for number in range(fetches)]
    empty_bytes = len(fetch_response(topic, aborted_transactions=int(committed)))
    return Load(
        frames=[[fetch_frame(topic, 0, offset, payload, committed=committed) for offset in offsets]],
        in_flight=1,
        payload_bytes=payload,
        error_at=fetch_error_at(topic),
        response_min=empty_bytes + payload,
        response_max=empty_bytes + payload + FETCH_RESPONSE_SLACK_BYTES,
    )

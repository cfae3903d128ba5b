"""The lines of the transactions chapter with their goals; those of producers measure throughput and commit latency."""

from __future__ import annotations

from dataclasses import dataclass

from bench.line import Figure, Line, Measurement, Options
from bench.load.generator import target_of
from bench.systems.servers import KAFKA, System
from bench.transactions.fetch_committed import FetchCommitted
from bench.transactions.load import Transactions, run_transactions

RECORDS = 100  # records per transaction
VALUE_BYTES = 100
NO_WORSE = 1.0


def _figures(latency_goal: float | None) -> tuple[Figure, ...]:
    return (
        Figure("transactions_per_s", "transactions/s", True, goal=1.2),
        Figure("p50_us", "commit p50 µs", False, goal=latency_goal),
        Figure("p99_us", "commit p99 µs", False, goal=latency_goal),
        Figure("cpu_us_per_transaction", "CPU µs/transaction", False),
    )


@dataclass(frozen=True)
class Transactional:
    name: str
    title: str
    partitions: int
    producers: int
    figures: tuple[Figure, ...]
    against: tuple[str, ...] = (KAFKA,)
    alone: bool = False
    warm_rounds: int = 1

    def prepare(self, system: System, topic: str) -> Transactions:
        """Create the topic and return the load."""
        system.create_topic(topic, self.partitions)
        return Transactions(topic, self.partitions, self.producers, RECORDS, VALUE_BYTES)

    def measure(self, system: System, topic: str, options: Options) -> Measurement:
        load = self.prepare(system, topic)
        try:
            outcome, retries = run_transactions(target_of(system), load, options.span)
        finally:
            system.delete_topic(topic)
        figures = {
            "transactions_per_s": outcome.requests_per_s,
            "p50_us": outcome.p50_us,
            "p99_us": outcome.p99_us,
            "cpu_us_per_transaction": outcome.cpu_us_per_request,
        }
        return Measurement(figures, {**outcome.as_json(), "retries": retries})


def transaction_lines() -> list[Line]:
    return [*_producer_lines(), FetchCommitted()]


def _producer_lines() -> list[Line]:
    """Return the lines of transactional producers, those with many producers first.

    By the time a single producer is measured, the JVM has compiled the code. With many producers the latency follows
    from the throughput, because each starts the next transaction at once; only a single one shows how long a commit
    takes.
    """
    partition_counts = {1: "1 partition", 10: "10 partitions"}
    producer_counts = {8: ("x8", "8 producers", None), 1: ("", "1 producer", NO_WORSE)}
    return [
        Transactional(
            f"transactions-{partitions}{suffix}",
            f"transactions of 100 records of 100 B over {partitions_title}, {producers_title}",
            partitions,
            producers,
            _figures(latency_goal),
        )
        for producers, (suffix, producers_title, latency_goal) in producer_counts.items()
        for partitions, partitions_title in partition_counts.items()
    ]

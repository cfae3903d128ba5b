"""Transactional producers: transactions per second and commit latency."""

from __future__ import annotations

from dataclasses import dataclass

from bench.contestants import KAFKA, Contestant
from bench.line import Figure, Line, Measured, Options
from bench.transaction_load import Transactions, run_transactions

RECORDS = 100  # records per transaction
VALUE_BYTES = 100
NO_WORSE = 1.0


def figures(latency_goal: float | None) -> tuple[Figure, ...]:
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

    def prepare(self, contestant: Contestant, topic: str) -> Transactions:
        """Create the topic and return the load."""
        contestant.open_topic(topic, self.partitions)
        return Transactions(topic, self.partitions, self.producers, RECORDS, VALUE_BYTES)

    def measure(self, contestant: Contestant, topic: str, options: Options) -> Measured:
        load = self.prepare(contestant, topic)
        try:
            outcome, retries = run_transactions(contestant.port, contestant.pid, load, options.span)
        finally:
            contestant.drop_topic(topic)
        figures = {
            "transactions_per_s": outcome.requests_per_s,
            "p50_us": outcome.p50_us,
            "p99_us": outcome.p99_us,
            "cpu_us_per_transaction": outcome.cpu_us_per_request,
        }
        return Measured(figures, {**outcome.as_json(), "retries": retries})


def transactional_lines() -> list[Line]:
    """Return the lines, those with many producers first.

    By the time a single producer is measured, the JVM has compiled the code. With many producers the latency follows
    from the throughput, because each starts the next transaction at once; only a single one shows how long a commit
    takes.
    """
    over = {1: "1 partition", 10: "10 partitions"}
    by = {8: ("x8", "8 producers", None), 1: ("", "1 producer", NO_WORSE)}
    return [
        Transactional(
            f"transactions-{partitions}{suffix}",
            f"transactions of 100 records of 100 B over {where}, {who}",
            partitions,
            producers,
            figures(latency_goal),
        )
        for producers, (suffix, who, latency_goal) in by.items()
        for partitions, where in over.items()
    ]

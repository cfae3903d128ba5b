"""How fast, against real Kafka on the same machine in the same run."""

from __future__ import annotations

import sys

from bench.lines import BROKER, TRANSACTIONS

from headrace.testing import peers
from tools.prove.commands import run
from tools.prove.registry import NotRun, check, say

BENCHMARK_S_MAX = 3600.0
TABLE_LINES_MAX = 60


@check(
    "benchmark",
    "produce, fetch, latency, memory, groups and start against Apache Kafka in one interleaved run, as a table of ratios",
)
def benchmark() -> str:
    return _published(BROKER)


@check(
    "benchmark-transactions",
    "transactions a second, latency of commits and read_committed fetches against Apache Kafka in one interleaved run",
)
def benchmark_transactions() -> str:
    return _published(TRANSACTIONS)


def _published(chapter: str) -> str:
    reason = peers.available()
    if reason is not None:
        raise NotRun(reason)
    command = [sys.executable, "-m", "bench", chapter, "--publish"]
    said = run(command, timeout_s=BENCHMARK_S_MAX, may_fail=True)
    lines = said.stdout.rstrip().splitlines()
    for line in lines[-TABLE_LINES_MAX:]:
        say(line)
    assert said.returncode == 0, (
        f"{' '.join(command[1:])} ended with {said.returncode}: {lines[-1] if lines else 'no word'}"
    )
    verdict = next(line for line in lines if "goals met" in line)
    return f"{verdict.strip()}; the published table is in docs/performance.md"

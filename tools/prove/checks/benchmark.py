"""How fast, against real Kafka on the same machine in the same run."""

from __future__ import annotations

import sys

from headrace.testing import peers
from tools.prove.commands import run
from tools.prove.registry import NotRun, check, say

BENCHMARK_S_MAX = 3600.0
TABLE_LINES_MAX = 60


@check(
    "benchmark",
    "produce, fetch, latency, memory and start against Apache Kafka in one interleaved run, as a table of ratios",
)
def benchmark() -> str:
    reason = peers.available()
    if reason is not None:
        raise NotRun(reason)
    said = run([sys.executable, "-m", "bench", "--publish"], timeout_s=BENCHMARK_S_MAX, may_fail=True)
    lines = said.stdout.rstrip().splitlines()
    for line in lines[-TABLE_LINES_MAX:]:
        say(line)
    assert said.returncode == 0, f"python -m bench ended with {said.returncode}: {lines[-1] if lines else 'no word'}"
    return f"{'; '.join(line.strip() for line in lines[-2:])}; the published table is docs/performance.md"

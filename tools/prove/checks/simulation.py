"""The real node on a simulated machine: crashes, torn writes, cut connections, by seed."""

from __future__ import annotations

import re
import sys

from tools.prove.commands import run
from tools.prove.registry import check, say

SIMULATOR = (sys.executable, "-m", "headrace.testing.simulator")
SEEDS = 500
SEEDS_A_MUTATION = 200
MUTATIONS = ("skip-torn-tail-cut", "acknowledge-before-write", "acknowledge-before-sync", "forget-producer-state")
TRACED_SEEDS = (0, 1, 2, 3, 4)
MANY_S_MAX = 3600.0
ONE_S_MAX = 120.0


@check("simulated-seeds", "500 simulated seeds with crashes and torn writes: nothing acknowledged is lost or changed")
def simulated_seeds() -> str:
    said = run([*SIMULATOR, "--seeds", f"0-{SEEDS - 1}"], timeout_s=MANY_S_MAX).stdout
    summary = re.search(rf"^{SEEDS} seeds, 0 bad.*$", said, re.MULTILINE)
    assert summary, f"no summary of {SEEDS} good seeds: {said[-1000:]}"
    return summary[0]


@check(
    "mutations-found",
    "the simulator finds a skipped torn-tail cut, an acknowledgement before the write, one before the fsync, and forgotten producer state,"
    " each within 200 seeds",
)
def mutations_found() -> str:
    found = []
    for mutation in MUTATIONS:
        command = [*SIMULATOR, "--seeds", f"0-{SEEDS_A_MUTATION - 1}", "--mutation", mutation]
        done = run(command, timeout_s=MANY_S_MAX, may_fail=True)
        verdict = re.search(rf"^{mutation} was found after (\d+) seeds$", done.stdout, re.MULTILINE)
        assert verdict, f"{mutation} was not found (exit code {done.returncode}): {done.stdout[-1000:]}"
        say(verdict[0])
        found.append(f"{mutation} after {verdict[1]}")
    return ", ".join(found)


@check(
    "same-seed-same-trace",
    "a seed plays the same trace under another PYTHONHASHSEED: what failed once can be played again",
)
def same_seed_same_trace() -> str:
    for seed in TRACED_SEEDS:
        traces = {_trace(seed, hash_seed) for hash_seed in ("1", "2", "random")}
        assert len(traces) == 1, f"seed {seed} has traces {sorted(traces)}"
    return f"{len(TRACED_SEEDS)} seeds, 3 hash seeds each, one trace each"


def _trace(seed: int, hash_seed: str) -> str:
    said = run(
        [*SIMULATOR, "--seed", str(seed)], timeout_s=ONE_S_MAX, environment={"PYTHONHASHSEED": hash_seed}, may_fail=True
    ).stdout
    trace = re.search(r"trace (\w+)", said)
    assert trace, f"no trace of seed {seed}: {said[-1000:]}"
    return trace[1]

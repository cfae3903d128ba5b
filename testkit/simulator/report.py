"""Runs many seeds and prints progress, a summary, and the command that replays a failure."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable

from testkit.simulator.simulation import Outcome, SeedRun, Simulation, run_seed

PROGRESS_EVERY = 25
SHOWN_MAX = 10


def replay_command(seed: int, mutation: str | None = None, flag: str = "") -> str:
    kind = f" {flag}" if flag else ""
    extra = f" --mutation {mutation}" if mutation else ""
    return f"python -m testkit.simulator{kind} --seed {seed}{extra} --trace"


def print_outcome(outcome: Outcome, print_line: Callable[[str], None]) -> None:
    state = "good" if outcome.is_good else "BAD"
    print_line(
        f"seed {outcome.seed}: {state}, trace {outcome.trace_hash}, {outcome.acknowledged} records acknowledged, "
        f"{outcome.read} read, {outcome.simulated_s:.1f} s simulated in {outcome.steps} steps, "
        f"faults: {', '.join(outcome.faults) or 'none'}"
    )
    for text in outcome.failures[:SHOWN_MAX]:
        print_line(f"  failure: {text}")
    for anomaly in outcome.anomalies[:SHOWN_MAX]:
        print_line(f"  {anomaly.kind}: {anomaly.text}")
    more = max(0, len(outcome.failures) - SHOWN_MAX) + max(0, len(outcome.anomalies) - SHOWN_MAX)
    if more:
        print_line(f"  … and {more} more")


def run_many(
    seeds: Iterable[int],
    print_line: Callable[[str], None],
    *,
    mutation: str | None = None,
    stop_at_first: bool = False,
    simulation_type: type[SeedRun] = Simulation,
) -> list[Outcome]:
    """Run all seeds and return their outcomes; print bad ones at once, and progress every PROGRESS_EVERY seeds."""
    began = time.perf_counter()
    outcomes: list[Outcome] = []
    for seed in seeds:
        outcome = run_seed(seed, None, simulation_type)
        outcomes.append(outcome)
        if not outcome.is_good:
            print_outcome(outcome, print_line)
            if stop_at_first:
                break
        if len(outcomes) % PROGRESS_EVERY == 0:
            bad = sum(not one.is_good for one in outcomes)
            print_line(f"{len(outcomes)} seeds, {bad} bad, {time.perf_counter() - began:.0f} s")
    _summary(outcomes, time.perf_counter() - began, print_line, mutation, simulation_type.flag)
    return outcomes


def _summary(
    outcomes: list[Outcome], seconds: float, print_line: Callable[[str], None], mutation: str | None, flag: str
) -> None:
    bad = [outcome for outcome in outcomes if not outcome.is_good]
    faults = Counter(fault for outcome in outcomes for fault in outcome.faults)
    print_line(
        f"{len(outcomes)} seeds, {len(bad)} bad; {sum(o.acknowledged for o in outcomes)} records acknowledged, "
        f"{sum(o.read for o in outcomes)} read, {sum(o.simulated_s for o in outcomes):.0f} s simulated in {seconds:.0f} s"
    )
    print_line("faults: " + ", ".join(f"{name} {count}" for name, count in sorted(faults.items())))
    if bad:
        print_line(f"first bad seed: {bad[0].seed}; again: {replay_command(bad[0].seed, mutation, flag)}")

"""Run the simulator with one seed or many, on the unchanged product or with a mutation."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext

from testkit.seeds import seed_range
from testkit.simulator.cluster.mutations import CLUSTER_MUTATIONS
from testkit.simulator.cluster.simulation import ClusterSimulation
from testkit.simulator.groups.simulation import GroupSimulation
from testkit.simulator.mutations import GROUP_MUTATIONS, MUTATIONS, TRANSACTION_MUTATIONS
from testkit.simulator.report import print_outcome, run_many
from testkit.simulator.simulation import SeedRun, Simulation, run_seed
from testkit.simulator.transactions.simulation import TransactionSimulation


def main(arguments: Sequence[str] | None = None) -> int:
    all_mutations = MUTATIONS | GROUP_MUTATIONS | TRANSACTION_MUTATIONS | CLUSTER_MUTATIONS
    parser = argparse.ArgumentParser(prog="python -m testkit.simulator", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this seed and print its outcome")
    parser.add_argument("--seeds", type=seed_range, metavar="FIRST-LAST", help="run all of these seeds")
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--groups", action="store_true", help="members of groups instead of producers and readers")
    kinds.add_argument("--transactions", action="store_true", help="producers of transactions, and their readers")
    kinds.add_argument("--cluster", action="store_true", help="a cluster of three nodes with replicated topics")
    parser.add_argument(
        "--mutation", choices=sorted(all_mutations), help="plant this fault in the product and stop when it is found"
    )
    parser.add_argument("--trace", action="store_true", help="print every event (with --seed)")
    given = parser.parse_args(arguments)
    if (given.seed is None) == (given.seeds is None):
        parser.error("give --seed or --seeds")

    def print_line(text: str) -> None:
        print(text, flush=True)

    kind: type[SeedRun] = Simulation
    if given.groups or given.mutation in GROUP_MUTATIONS:
        kind = GroupSimulation
    elif given.transactions or given.mutation in TRANSACTION_MUTATIONS:
        kind = TransactionSimulation
    elif given.cluster or given.mutation in CLUSTER_MUTATIONS:
        kind = ClusterSimulation
    with all_mutations[given.mutation]() if given.mutation else nullcontext():
        if given.seed is not None:
            outcome = run_seed(given.seed, print_line if given.trace else None, kind)
            print_outcome(outcome, print_line)
            return 0 if outcome.is_good else 1
        outcomes = run_many(
            given.seeds,
            print_line,
            mutation=given.mutation,
            stop_at_first=given.mutation is not None,
            simulation_type=kind,
        )
    if given.mutation is not None:
        found = not outcomes[-1].is_good
        print_line(f"{given.mutation} was {'found' if found else 'NOT found'} after {len(outcomes)} seeds")
    return 0 if all(outcome.is_good for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Run quorums of three raft nodes under faults, by seed, on the unchanged product or with a mutation."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from contextlib import nullcontext

from testkit.raft.checks import PropertyViolated
from testkit.raft.loop import Faults, run_and_recover
from testkit.raft.mutations import RAFT_MUTATIONS
from testkit.seeds import seed_range

VOTERS = 3


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m testkit.raft", description=__doc__)
    parser.add_argument("--seeds", type=seed_range, metavar="FIRST-LAST", required=True, help="run all of these seeds")
    parser.add_argument("--mutation", choices=sorted(RAFT_MUTATIONS), help="plant this fault in the product")
    given = parser.parse_args(arguments)
    with RAFT_MUTATIONS[given.mutation]() if given.mutation else nullcontext():
        found = _first_violation(given.seeds)
    if given.mutation is not None:
        print(
            f"{given.mutation} was {'NOT found' if found is None else 'found'} after {found or len(given.seeds)} seeds"
        )
    elif found is None:
        print(f"{len(given.seeds)} seeds, 0 bad")
    return 0 if found is None else 1


def _first_violation(seeds: range) -> int | None:
    """Run the seeds until one violates a property of Raft, and return how many were run; None if all are good."""
    for count, seed in enumerate(seeds, start=1):
        try:
            run_and_recover(seed, VOTERS, faults=Faults())
        except PropertyViolated as violation:
            print(f"seed {seed}: {violation}")
            return count
    return None


if __name__ == "__main__":
    sys.exit(main())

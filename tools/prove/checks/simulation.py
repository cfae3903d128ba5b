"""The real node on a simulated machine with crashes, torn writes and cut connections, by seed."""

from __future__ import annotations

import re
import sys
from concurrent.futures import ThreadPoolExecutor

from tools.prove.commands import run
from tools.prove.registry import check, print_progress

SIMULATOR = (sys.executable, "-m", "testkit.simulator")
SEEDS = 500
SEEDS_PER_MUTATION = 200
MUTATIONS = ("skip-torn-tail-cut", "acknowledge-before-write", "acknowledge-before-sync", "forget-producer-state")
GROUP_SEEDS, GROUP_SEEDS_AT_ONCE = 1000, 100
GROUP_MUTATIONS = ("reply-before-commit", "lose-a-revocation")
TRANSACTION_SEEDS, TRANSACTION_SEEDS_AT_ONCE = 1000, 100
TRANSACTION_SEEDS_PER_MUTATION = 300
TRANSACTION_MUTATIONS = (
    "stable-off-by-one",
    "lose-a-marker",
    "keep-the-epoch",
    "judge-before-markers",
    "forget-the-next-id",
)
CLUSTER_SEEDS, CLUSTER_SEEDS_AT_ONCE = 2000, 100
CLUSTER_SEEDS_PER_MUTATION = 300
CLUSTER_MUTATIONS = (
    "commit-without-followers",
    "follow-without-truncation",
    "accept-old-leaders",
    "elect-any-replica",
    "trust-unclean-replicas",
    "count-before-sync",
    "vote-before-sync",
    "commit-without-majority",
)
RAFT_LOOP = (sys.executable, "-m", "testkit.raft")
RAFT_MUTATIONS = ("commit-older-epochs",)  # a cluster takes too long to find it
CLUSTER_PROCESSES = 2  # simulators of clusters that run at the same time
TRACED_SEEDS = (0, 1, 2, 3, 4)
MANY_S_MAX = 3600.0
ONE_S_MAX = 120.0


@check(
    "simulated-seeds",
    "In 500 simulated seeds with crashes and torn writes, no acknowledged record is lost or changed",
)
def simulated_seeds() -> str:
    output = run([*SIMULATOR, "--seeds", f"0-{SEEDS - 1}"], timeout_s=MANY_S_MAX).stdout
    summary = re.search(rf"^{SEEDS} seeds, 0 bad.*$", output, re.MULTILINE)
    assert summary, f"no summary of {SEEDS} good seeds: {output[-1000:]}"
    return summary[0]


@check(
    "mutations-found",
    "The simulator finds four planted faults within 200 seeds each: a torn tail that is not truncated, an "
    "acknowledgement before the write, one before the fsync, and lost producer state",
)
def mutations_found() -> str:
    return _find_mutations(MUTATIONS)


@check(
    "simulated-groups",
    "In 1,000 simulated seeds of classic and consumer groups, with crashes, unloads and reloads of their "
    "coordinator, no partition has two owners, no acknowledged commit is lost, and every group becomes stable "
    "again",
)
def simulated_groups() -> str:
    commits, reads = _simulate("--groups", GROUP_SEEDS, GROUP_SEEDS_AT_ONCE)
    return f"{GROUP_SEEDS} seeds, 0 bad; {commits} commits acknowledged, {reads} times all of a group's offsets read"


@check(
    "group-mutations-found",
    "The simulator finds two planted faults within 200 seeds each: a coordinator that replies before the commit, "
    "and one that loses a revocation",
)
def group_mutations_found() -> str:
    return _find_mutations(GROUP_MUTATIONS)


@check(
    "simulated-transactions",
    "In 1,000 simulated seeds of transactions, with crashes, zombies, long-delayed requests and moving "
    "coordinators, each transaction is visible completely or not at all, nothing acknowledged is lost, nothing "
    "aborted is read, no transaction stays open, and no producer is fenced that is the only user of its "
    "transactional id",
)
def simulated_transactions() -> str:
    ends, reads = _simulate("--transactions", TRANSACTION_SEEDS, TRANSACTION_SEEDS_AT_ONCE)
    return f"{TRANSACTION_SEEDS} seeds, 0 bad; {ends} ends of transactions acknowledged, {reads} records read"


@check(
    "transaction-mutations-found",
    "The simulator finds these planted faults within 300 seeds each: a last stable offset that is off by one, a "
    "lost marker, an epoch that outlives its transaction, and a live producer that is fenced by its epoch or its "
    "new id before the markers are written",
)
def transaction_mutations_found() -> str:
    return _find_mutations(TRANSACTION_MUTATIONS, TRANSACTION_SEEDS_PER_MUTATION)


@check(
    "simulated-cluster",
    "In 2,000 simulated seeds of three nodes, under producers, groups or transactions, with kills, pauses, power "
    "losses, restarts, cut, stalled and one-way links, nothing acknowledged is lost or changed, every transaction "
    "is visible completely or not at all, committed offsets do not go back, replicas and committed metadata are "
    "equal, there is one leader per epoch, and every client finishes after the last fault",
)
def simulated_cluster() -> str:
    acknowledged, reads = _simulate("--cluster", CLUSTER_SEEDS, CLUSTER_SEEDS_AT_ONCE, CLUSTER_PROCESSES)
    return f"{CLUSTER_SEEDS} seeds, 0 bad; {acknowledged} records, commits and transactions acknowledged, {reads} read"


@check(
    "cluster-mutations-found",
    "The simulated cluster finds these planted faults within 300 seeds each: a high watermark that ignores the "
    "followers, followers that do not truncate, a controller that accepts changes of the ISR from old leaders, "
    "elects any replica or trusts replicas after an unclean restart, and voters that count records or send votes "
    "before they are on disk or commit records without a majority; 300 seeds of a quorum of raft nodes find a "
    "leader that commits records of older epochs by counting replicas",
)
def cluster_mutations_found() -> str:
    found = _find_mutations(CLUSTER_MUTATIONS, CLUSTER_SEEDS_PER_MUTATION, CLUSTER_PROCESSES)
    return f"{found}, {_find_mutations(RAFT_MUTATIONS, CLUSTER_SEEDS_PER_MUTATION, program=RAFT_LOOP)}"


def _simulate(kind: str, seeds: int, at_once: int, processes: int = 1) -> tuple[int, int]:
    """Run the simulator and return how many records were acknowledged and read."""

    def simulate(first: int) -> tuple[int, int]:
        last = first + at_once - 1
        output = run([*SIMULATOR, kind, "--seeds", f"{first}-{last}"], timeout_s=MANY_S_MAX, may_fail=True).stdout
        summary = re.search(rf"^{at_once} seeds, 0 bad; (\d+) records acknowledged, (\d+) read", output, re.MULTILINE)
        assert summary, f"not all seeds from {first} to {last} are good: {output[-2000:]}"
        print_progress(f"seeds {first} to {last}: 0 bad")
        return int(summary[1]), int(summary[2])

    with ThreadPoolExecutor(processes) as pool:
        counts = list(pool.map(simulate, range(0, seeds, at_once)))
    return sum(acknowledged for acknowledged, _ in counts), sum(reads for _, reads in counts)


def _find_mutations(
    mutations: tuple[str, ...],
    seeds: int = SEEDS_PER_MUTATION,
    processes: int = 1,
    program: tuple[str, ...] = SIMULATOR,
) -> str:
    """Check that the simulator finds each mutation and return after how many seeds."""

    def find(mutation: str) -> str:
        command = [*program, "--seeds", f"0-{seeds - 1}", "--mutation", mutation]
        done = run(command, timeout_s=MANY_S_MAX, may_fail=True)
        verdict = re.search(rf"^{mutation} was found after (\d+) seeds$", done.stdout, re.MULTILINE)
        assert verdict, f"{mutation} was not found (exit code {done.returncode}): {done.stdout[-1000:]}"
        print_progress(verdict[0])
        return f"{mutation} after {verdict[1]}"

    with ThreadPoolExecutor(processes) as pool:
        return ", ".join(pool.map(find, mutations))


@check(
    "same-seed-same-trace",
    "A seed produces the same trace under another PYTHONHASHSEED, so that every failure can be reproduced",
)
def same_seed_same_trace() -> str:
    for kind in ((), ("--groups",), ("--transactions",), ("--cluster",)):
        for seed in TRACED_SEEDS:
            traces = {_trace(kind, seed, hash_seed) for hash_seed in ("1", "2", "random")}
            assert len(traces) == 1, f"seed {seed} {kind} has traces {sorted(traces)}"
    return f"{len(TRACED_SEEDS)} seeds of each kind, 3 hash seeds each, one trace each"


def _trace(kind: tuple[str, ...], seed: int, hash_seed: str) -> str:
    output = run(
        [*SIMULATOR, *kind, "--seed", str(seed)],
        timeout_s=ONE_S_MAX,
        environment={"PYTHONHASHSEED": hash_seed},
        may_fail=True,
    ).stdout
    trace = re.search(r"trace (\w+)", output)
    assert trace, f"no trace of seed {seed}: {output[-1000:]}"
    return trace[1]

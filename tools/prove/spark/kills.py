"""Kills of drivers, workers and brokers at random moments of an exactly-once stream."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from random import Random
from typing import NamedTuple, Protocol

import psutil

from tools.prove.cluster.in_sync import wait_until_in_sync
from tools.prove.spark.stream import Stream

DRIVER, WORKER, BROKER = "driver", "worker", "broker"
KINDS = {DRIVER: 0.35, WORKER: 0.4, BROKER: 0.25}
BATCHES_MAX = 3  # between two kills, except for blind ones
AFTER_BATCH_S_MAX = 1.2  # about as long as a batch takes
BLIND_PROBABILITY = 0.25
BLIND_S_MAX = 8.0  # long enough to also hit a driver that starts or recovers
BROKER_DOWN_S_MAX, NODE_DOWN_S_MAX = 1.0, 5.0
IN_SYNC_S_MAX = 90.0
NO_WORKER_S_MAX = 60.0
MASTER = "local[2,4]"  # a task that fails is retried
PROGRESS_EVERY = 5


class Node(Protocol):
    def kill(self) -> None: ...

    def start(self) -> object: ...


class Target(NamedTuple):
    """The broker or cluster that a stream reads and writes, and its nodes, which can be killed."""

    name: str
    bootstrap: str
    nodes: Sequence[Node]
    replicas: int


class Kill(NamedTuple):
    """A kill of this kind; of this node if it is a kill of a broker."""

    kind: str
    node: Node | None = None


Plan = Callable[[Target, Random], Iterator[Kill]]


def random_kills(target: Target, random: Random) -> Iterator[Kill]:
    """Yield kills of random kinds and nodes, without end."""
    while True:
        kind = random.choices(list(KINDS), list(KINDS.values()))[0]
        yield Kill(kind, random.choice(target.nodes) if kind == BROKER else None)


def brokers_in_turn(target: Target, random: Random) -> Iterator[Kill]:
    """Yield a kill of each broker once, when all replicas are in sync, and one of a driver or a worker after each."""
    for number, node in enumerate(target.nodes):
        wait_until_in_sync(target.bootstrap, IN_SYNC_S_MAX)
        yield Kill(BROKER, node)
        yield Kill((DRIVER, WORKER)[number % 2])


def stream_under_kills(
    target: Target, kills: int, seed: int, print_progress: Callable[[str], None], plan: Plan = random_kills
) -> str:
    """Run the stream under kills and return a summary. Raise AssertionError unless its output equals a batch job's."""
    random = Random(f"{seed} {target.name}")
    done: Counter[str] = Counter()
    base_ms = int(time.time() * 1000) - 7_200_000
    with Stream(target.bootstrap, replicas=target.replicas, base_ms=base_ms, master=MASTER, environment={}) as stream:
        stream.wait_for_batches(1)
        stream.restart_after_exit()
        planned = plan(target, random)
        while done.total() < kills:
            _wait_for_progress(stream, random)
            kill = next(planned)
            if not _kill(kill, stream, random, is_cluster=len(target.nodes) > 1):
                continue
            done[kill.kind] += 1
            if done.total() % PROGRESS_EVERY == 0:
                print_progress(
                    f"{target.name}: {_describe_kills(done)}; {stream.batches} batches, "
                    f"{stream.failures} failures of the query"
                )
        summary = stream.finish()
        return f"{target.name}: {_describe_kills(done)}, {stream.failures} failures of the query, {summary}"


def _kill(kill: Kill, stream: Stream, random: Random, *, is_cluster: bool) -> bool:
    """Kill and restart what the plan says. Return False if there was nothing to kill."""
    if kill.kind == DRIVER:
        stream.program.kill()
        stream.restart()
        return True
    if kill.node is None:
        return _kill_worker(stream, random)
    kill.node.kill()
    if is_cluster:
        stream.wait(random.uniform(0, NODE_DOWN_S_MAX))  # the others continue
    else:
        time.sleep(random.uniform(0, BROKER_DOWN_S_MAX))
    kill.node.start()
    return True


def _wait_for_progress(stream: Stream, random: Random) -> None:
    if random.random() < BLIND_PROBABILITY:
        stream.wait(random.uniform(0, BLIND_S_MAX))
    else:
        stream.wait_for_batches(random.randint(1, BATCHES_MAX))
        stream.wait(random.uniform(0, AFTER_BATCH_S_MAX))


def _kill_worker(stream: Stream, random: Random) -> bool:
    """Kill a worker that runs tasks, plans reads or commits writes. Return False if there is none for long."""
    deadline = time.monotonic() + NO_WORKER_S_MAX
    while not (workers := stream.program.workers()):
        if time.monotonic() > deadline:
            return False
        stream.poll()
    with suppress(psutil.NoSuchProcess):
        random.choice(workers).kill()
        return True
    return False


def _describe_kills(done: Counter[str]) -> str:
    return f"{done.total()} kills ({', '.join(f'{count} of {kind}s' for kind, count in sorted(done.items()))})"

"""Kills of drivers, workers and brokers at random moments of an exactly-once stream."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import Protocol

import psutil

from tools.prove.spark.stream import Stream

DRIVER, WORKER, BROKER = "driver", "worker", "broker"
KINDS = {DRIVER: 0.35, WORKER: 0.4, BROKER: 0.25}
BATCHES_MAX = 3  # between two kills, except for blind ones
AFTER_BATCH_S_MAX = 1.2  # about as long as a batch takes
BLIND_PROBABILITY = 0.25
BLIND_S_MAX = 8.0  # long enough to also hit a driver that starts or recovers
BROKER_DOWN_S_MAX, NODE_DOWN_S_MAX = 1.0, 5.0
NO_WORKER_S_MAX = 60.0
MASTER = "local[2,4]"  # a task that fails is retried
PROGRESS_EVERY = 5


class Node(Protocol):
    def kill(self) -> None: ...

    def start(self) -> object: ...


def stream_under_kills(
    name: str,
    bootstrap: str,
    nodes: Sequence[Node],
    replicas: int,
    kills: int,
    seed: int,
    print_progress: Callable[[str], None],
) -> str:
    """Run the stream under kills and return a summary. Raise AssertionError unless its output equals a batch job's."""
    random = Random(f"{seed} {name}")
    done: Counter[str] = Counter()
    base_ms = int(time.time() * 1000) - 7_200_000
    with Stream(bootstrap, replicas=replicas, base_ms=base_ms, master=MASTER, environment={}) as stream:
        stream.wait_for_batches(1)
        stream.restart_after_exit()
        while done.total() < kills:
            _wait_for_progress(stream, random)
            kind = random.choices(list(KINDS), list(KINDS.values()))[0]
            if kind == DRIVER:
                stream.program.kill()
                stream.restart()
            elif kind == BROKER:
                node = random.choice(nodes)
                node.kill()
                if len(nodes) > 1:
                    stream.wait(random.uniform(0, NODE_DOWN_S_MAX))  # the others continue
                else:
                    time.sleep(random.uniform(0, BROKER_DOWN_S_MAX))
                node.start()
            elif not _kill_worker(stream, random):
                continue
            done[kind] += 1
            if done.total() % PROGRESS_EVERY == 0:
                print_progress(
                    f"{name}: {_describe_kills(done)}; {stream.batches} batches, {stream.failures} failures of the query"
                )
        summary = stream.finish()
        return f"{name}: {_describe_kills(done)}, {stream.failures} failures of the query, {summary}"


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

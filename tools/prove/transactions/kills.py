"""Transactions under kill -9 and pauses of the node and the producers, with a history of all responses.

One thread polls them all. A worker reports each operation before it starts, and the reader's records enter the history
only after everything that the workers have reported by then: nothing is in the history before its cause.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from random import Random

from testkit.history import FinalRead, History, Place, check
from testkit.history_transactions import POLL_COMMITTED, check_transactions

from headrace.testing.processes import NodeProcess, ProcessFailed
from tools.prove.transactions.reading import (
    COMMITTED,
    READER,
    UNCOMMITTED,
    Records,
    create_topics,
    keep,
    read_all,
    undecided,
)
from tools.prove.transactions.worker import PARTITIONS, TOPICS
from tools.prove.transactions.worker_processes import WorkerProcess

WORKERS = 3
LOAD_S = (0.1, 0.6)
NODE_PAUSE_S = (0.1, 5.0)
WORKER_PAUSE_S = (0.1, 2.0)
DOWN_S_MAX = 0.3
COMMITTED_S_MAX = 30.0
EARLY_KILL_PROBABILITY = 0.2  # share of starts that are killed too, during recovery
EARLY_KILL_S = (0.05, 0.6)
SUCCESSOR_PROBABILITY = 0.5  # share of paused workers that are replaced before they resume
FRESH_ID_PROBABILITY = 0.3  # share of replacements with a new transactional id, which leave the old transaction open
ENDED_S_MAX = 60.0
POLL_S = 0.01
PLACES: tuple[Place, ...] = tuple((topic, index) for topic in TOPICS for index in range(PARTITIONS))
SETTINGS = {
    "num.partitions": str(PARTITIONS),
    "log.segment.bytes": "1048576",
    "log.index.interval.bytes": "1024",
    "log.flush.offset.checkpoint.interval.ms": "300",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "transaction.state.log.num.partitions": "5",
}
FAULTS = {"node killed": 4, "node paused": 3, "worker killed": 4, "worker paused": 4, "worker paused, node killed": 2}


class CommittedReader:
    """Follows all partitions from the beginning with read_committed."""

    def __init__(self, bootstrap: str, history: History, read_events: Callable[[], None]) -> None:
        from confluent_kafka import Consumer, TopicPartition

        self._history = history
        self._read_events = read_events
        self.wrong: list[str] = []
        self.consumer = Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "reader", "isolation.level": COMMITTED, **READER}
        )
        self.consumer.assign([TopicPartition(*place, 0) for place in PLACES])

    def poll(self, wait_s: float = 0.0) -> int:
        found: dict[Place, Records] = {}
        messages = self.consumer.consume(500, wait_s)
        for message in messages:
            error = message.error()
            if error is None:
                keep(message, found)
            elif error.name() in ("_BAD_MSG", "OFFSET_OUT_OF_RANGE", "_AUTO_OFFSET_RESET", "CORRUPT_MESSAGE"):
                self.wrong.append(f"reader: {error}")
        self._read_events()
        for (topic, partition), records in found.items():
            call = self._history.invoke("reader", POLL_COMMITTED, topic=topic, partition=partition)
            self._history.ok(call, records=records)
        return len(messages)


class Rounds:
    """Workers, a reader and a node, with a fault of one of them in each round."""

    def __init__(self, node: NodeProcess, seed: int) -> None:
        self.random = Random(seed)
        self.history = History(time.monotonic)
        self.done: Counter[str] = Counter()
        self._node = node
        self._names = 0
        self._workers: list[WorkerProcess] = []
        self._replaced: list[WorkerProcess] = []  # exited, or about to be fenced
        self._reader: CommittedReader | None = None

    @property
    def _all_workers(self) -> list[WorkerProcess]:
        return [*self._workers, *self._replaced]

    @property
    def committed(self) -> int:
        return sum(one.committed for one in self._all_workers)

    @property
    def fenced(self) -> int:
        return sum(one.code == 1 for one in self._all_workers)

    @property
    def aborted(self) -> int:
        return sum(one.aborted for one in self._all_workers)

    def begin(self) -> None:
        create_topics(self._node.bootstrap, TOPICS, PARTITIONS)
        self._workers = [self._start_worker(f"id-{number}") for number in range(WORKERS)]
        self._reader = CommittedReader(self._node.bootstrap, self.history, self._read_events)

    def run_round(self) -> None:
        """Run one round: some load and a fault."""
        self._run(self.random.uniform(*LOAD_S), until_commit=True)
        fault = self.random.choices(list(FAULTS), list(FAULTS.values()))[0]
        self.done[fault] += 1
        if fault == "node killed":
            self._kill_node()
        elif fault == "node paused":
            self._node.pause()
            self._run(self.random.uniform(*NODE_PAUSE_S))
            self._node.resume()
        elif fault == "worker killed":
            index = self.random.randrange(WORKERS)
            self._workers[index].kill()
            self._replace(index)
        else:
            self._pause_worker(self._kill_node if fault.endswith("node killed") else lambda: None)

    def end(self) -> None:
        """Wait until every transaction has ended. Raise AssertionError if one does not."""
        assert self._reader is not None
        for one in self._workers:
            one.stop()
        deadline = time.monotonic() + ENDED_S_MAX
        while left := [one.name for one in self._all_workers if one.is_running]:
            assert time.monotonic() < deadline, f"the node is running, but {left} could not end their transactions"
            self._reader.poll(POLL_S)
        while open_places := undecided(self._node.bootstrap, PLACES):
            assert time.monotonic() < deadline, f"transactions without a producer stay open: {open_places}"
            self._reader.poll(POLL_S)
        while self._reader.poll(1.0):
            pass

    def anomalies(self, raw: FinalRead, committed: FinalRead) -> list[str]:
        assert self._reader is not None
        found = [*check(self.history, raw), *check_transactions(self.history, committed)]
        return [*self._reader.wrong, *(f"{kind}: {text}" for kind, text in found)]

    def close(self) -> None:
        for one in self._all_workers:
            one.close()
        if self._reader is not None:
            self._reader.consumer.close()

    def _start_worker(self, transactional_id: str) -> WorkerProcess:
        self._names += 1
        seed = self.random.randrange(1 << 32)
        return WorkerProcess(f"w{self._names}", transactional_id, self._node.bootstrap, seed, self.history)

    def _replace(self, index: int) -> None:
        self._replaced.append(self._workers[index])
        same_id = self._workers[index].transactional_id
        is_new = self.random.random() < FRESH_ID_PROBABILITY
        self._workers[index] = self._start_worker(f"{same_id}-{self._names}" if is_new else same_id)

    def _kill_node(self) -> None:
        self._node.kill()
        if self.random.random() < EARLY_KILL_PROBABILITY:
            self.done["killed during recovery"] += _kill_during_start(self._node, self.random.uniform(*EARLY_KILL_S))
        self._run(self.random.uniform(0, DOWN_S_MAX))
        if not self._node.is_running:
            self._node.start()

    def _pause_worker(self, meanwhile: Callable[[], None]) -> None:
        index = self.random.randrange(WORKERS)
        paused = self._workers[index]
        paused.pause()
        try:
            meanwhile()
            if self.random.random() < SUCCESSOR_PROBABILITY:
                self._replace(index)
            self._run(self.random.uniform(*WORKER_PAUSE_S))
        finally:
            paused.resume()
        if paused in self._replaced:
            paused.stop()  # in case it is not fenced

    def _run(self, seconds: float, until_commit: bool = False) -> None:
        """Run for this long and, with `until_commit`, until something is committed.

        A fault should hit a node that is working.
        """
        now = time.monotonic()
        end, deadline, before = now + seconds, now + COMMITTED_S_MAX, self.committed
        while time.monotonic() < end or (until_commit and self.committed == before):
            assert time.monotonic() < deadline, f"nothing was committed for {COMMITTED_S_MAX:.0f} s"
            self._poll()

    def _poll(self) -> None:
        if self._reader is not None:
            self._reader.poll(POLL_S)
        for index, one in enumerate(self._workers):
            if one.code not in (None, 0):
                self._replace(index)

    def _read_events(self) -> None:
        for one in self._all_workers:
            one.read_events()


def rounds_of_kills(rounds: int, seed: int, print_progress: Callable[[str], None] = lambda text: None) -> str:
    """Run the rounds and return a summary. Raise AssertionError with the anomalies found."""
    with NodeProcess(SETTINGS) as node:
        load = Rounds(node, seed)
        try:
            load.begin()
            for number in range(rounds):
                load.run_round()
                if (number + 1) % 10 == 0:
                    print_progress(
                        f"round {number + 1}: {load.committed} committed, {load.aborted} aborted, seed {seed}"
                    )
            load.end()
            committed, raw = (read_all(node.bootstrap, PLACES, level) for level in (COMMITTED, UNCOMMITTED))
            assert node.terminate() == 0, (
                f"the node did not stop cleanly after the last round: {node.log_text()[-2000:]}"
            )
            node.start()
            again = read_all(node.bootstrap, PLACES, COMMITTED)
        finally:
            load.close()
        log = node.log_text()
    wrong = load.anomalies(FinalRead(raw), FinalRead(committed))
    wrong += [f"{place} differs after a clean restart" for place in PLACES if committed[place] != again[place]]
    wrong += [line for line in log.splitlines() if "Traceback" in line or " ERROR " in line or "CRC" in line]
    assert not wrong, f"seed {seed}: {len(wrong)} anomalies, the first: " + "; ".join(wrong[:8])
    seen = sum(map(len, committed.values()))
    faults = ", ".join(f"{count} × {what}" for what, count in sorted(load.done.items()) if count)
    return (
        f"{rounds} rounds ({faults}), {load.fenced} producers fenced, {load.committed} transactions committed and "
        f"{load.aborted} aborted, {seen} records seen, {sum(map(len, raw.values())) - seen} hidden, 0 anomalies (seed {seed})"
    )


def _kill_during_start(node: NodeProcess, after_s: float) -> int:
    """Return 1 if the kill came before the node served, else 0."""
    try:
        node.start(after_s)
    except ProcessFailed:
        return 1
    node.kill()
    return 0

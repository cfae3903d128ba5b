"""The clients of a cluster under faults, and the history of all responses to them.

Idempotent and transactional producers write to replicated topics, readers follow them, and groups read one topic and commit. One thread
polls all clients but the members of groups, so the history has a total order.
"""

from __future__ import annotations

import time
from random import Random

from testkit.history import FinalRead, History, Place, check
from testkit.history_transactions import check_transactions

from tools.prove.cluster.group_load import GroupLoad
from tools.prove.groups.scenario import GroupSpec
from tools.prove.storage.kill_nine import BURST, LoadProducer, Reader
from tools.prove.storage.kill_nine import PARTITIONS as PLAIN_PARTITIONS
from tools.prove.storage.kill_nine import TOPICS as PLAIN_TOPICS
from tools.prove.transactions.kills import PLACES as TRANSACTIONAL_PLACES
from tools.prove.transactions.kills import CommittedReader
from tools.prove.transactions.reading import COMMITTED, UNCOMMITTED, create_topics, ends, read_all, undecided
from tools.prove.transactions.worker import PARTITIONS, TOPICS
from tools.prove.transactions.worker_processes import WorkerProcess

WORKERS, REPLICAS = 2, 3
HEAL_S_MAX = 60.0
GROUPS_HEAL_S_MAX = 90.0  # a member may find out only after a request timeout that its coordinator has moved
ENDED_S_MAX = 120.0
POLL_S = 0.005
PLAIN_PLACES: tuple[Place, ...] = tuple((topic, index) for topic in PLAIN_TOPICS for index in range(PLAIN_PARTITIONS))
ALL_PLACES = (*PLAIN_PLACES, *TRANSACTIONAL_PLACES)
GROUP_TOPIC = PLAIN_TOPICS[0]
GROUPS = (GroupSpec("confluent-kafka", "range", 2), GroupSpec("headrace", "consumer", 2))


class FaultClients:
    """Producers, workers, readers and groups on one cluster."""

    def __init__(self, bootstrap: str, random: Random) -> None:
        self.history = History(time.monotonic)
        self.longest_gap_s = 0.0  # time without an acknowledged write while at least two nodes were alive
        self.members_killed = 0
        self._bootstrap = bootstrap
        self._random = random
        self._producers: list[LoadProducer] = []
        self._workers: list[WorkerProcess] = []
        self._replaced: list[WorkerProcess] = []  # exited workers
        self.groups = [GroupLoad(spec, bootstrap, GROUP_TOPIC, PLAIN_PARTITIONS) for spec in GROUPS]
        self._names = 0
        self._last_s = time.monotonic()
        self._progress = 0

    def begin(self) -> None:
        create_topics(self._bootstrap, PLAIN_TOPICS, PLAIN_PARTITIONS, REPLICAS)
        create_topics(self._bootstrap, TOPICS, PARTITIONS, REPLICAS)
        self._producers = [
            LoadProducer(f"p{number}", topic, self._bootstrap, self.history, idempotent=True)
            for number, topic in enumerate(PLAIN_TOPICS, 1)
        ]
        self._workers = [self._start_worker(f"id-{number}") for number in range(WORKERS)]
        self._reader = Reader("reader", self._bootstrap, self.history)
        self._committed_reader = CommittedReader(self._bootstrap, self.history, self._read_events)
        for group in self.groups:
            group.start()

    @property
    def acknowledged(self) -> int:
        return sum(producer.acknowledged for producer in self._producers)

    @property
    def committed(self) -> int:
        return sum(worker.committed for worker in (*self._workers, *self._replaced))

    def describe(self) -> str:
        read = ", ".join(f"{group.read} records read by {group.group}" for group in self.groups)
        return (
            f"{self.acknowledged} records and {self.committed} transactions acknowledged, {read}, "
            f"{self.members_killed} members killed, longest time without a write {self.longest_gap_s:.1f} s"
        )

    def run(self, seconds: float, *, counts: bool = True) -> None:
        """Apply load; with `counts`, the time without an acknowledged write is measured."""
        end = time.monotonic() + seconds
        self._last_s = time.monotonic()
        while time.monotonic() < end:
            self._poll(counts=counts)

    def kill_member(self) -> None:
        """Kill a member of some group and start another."""
        self._random.choice(self.groups).kill_one(self._random)
        self.members_killed += 1

    def run_until_healed(self) -> None:
        """Run until all clients make progress and all groups are complete. Raise AssertionError if that takes too long."""
        before = [producer.acknowledged for producer in self._producers]
        committed, deadline = self.committed, time.monotonic() + HEAL_S_MAX
        while self.committed == committed or any(
            producer.acknowledged == count for producer, count in zip(self._producers, before, strict=True)
        ):
            assert time.monotonic() < deadline, (
                f"all nodes run, but within {HEAL_S_MAX:.0f} s not every producer made progress: "
                f"{[p.acknowledged - count for p, count in zip(self._producers, before, strict=True)]} records, "
                f"{self.committed - committed} transactions"
            )
            self._poll(counts=False)
        deadline = time.monotonic() + GROUPS_HEAL_S_MAX
        for group in self.groups:
            read = group.read
            while not group.is_complete or group.read == read or group.offsets_behind():
                assert time.monotonic() < deadline, (
                    f"all nodes run, but within {GROUPS_HEAL_S_MAX:.0f} s a group did not continue: {group.describe()}, "
                    f"offsets (stored, acknowledged) that went back: {group.offsets_behind()}"
                )
                self._poll(counts=False)

    def _poll(self, *, counts: bool) -> None:
        for producer in self._producers:
            producer.send(self._random.randrange(BURST), self._random)
            producer.producer.poll(POLL_S)
        now_s = time.monotonic()
        if self.acknowledged != self._progress:
            self._progress, self._last_s = self.acknowledged, now_s
        elif counts:
            self.longest_gap_s = max(self.longest_gap_s, now_s - self._last_s)
        self._reader.poll()
        self._committed_reader.poll(POLL_S)
        for index, worker in enumerate(self._workers):
            if worker.code not in (None, 0):
                self._replaced.append(worker)
                self._workers[index] = self._start_worker(worker.transactional_id)

    def _start_worker(self, transactional_id: str) -> WorkerProcess:
        self._names += 1
        seed = self._random.randrange(1 << 32)
        return WorkerProcess(f"w{self._names}", transactional_id, self._bootstrap, seed, self.history)

    def _read_events(self) -> None:
        for worker in (*self._workers, *self._replaced):
            worker.read_events()

    # --- the end

    def end(self) -> None:
        """Wait until every record is delivered and read, and every transaction has ended; otherwise raise AssertionError."""
        for worker in self._workers:
            worker.stop()
        deadline = time.monotonic() + ENDED_S_MAX
        while left := [worker.name for worker in self._workers if worker.is_running] + [
            producer.name for producer in self._producers if producer.open
        ]:
            assert time.monotonic() < deadline, f"all nodes run, but {left} could not finish"
            for producer in self._producers:
                producer.producer.poll(POLL_S)
            self._reader.poll()
            self._committed_reader.poll(POLL_S)
        while open_places := undecided(self._bootstrap, TRANSACTIONAL_PLACES):
            assert time.monotonic() < deadline, f"transactions without a producer stay open: {open_places}"
        while self._reader.poll(wait_s=1.0) + self._committed_reader.poll(1.0):
            pass
        places = [(GROUP_TOPIC, index) for index in range(PLAIN_PARTITIONS)]
        log_ends = {index: end for (_, index), end in ends(self._bootstrap, places, UNCOMMITTED).items()}
        for group in self.groups:
            group.wait_until_read(log_ends, ENDED_S_MAX)

    def anomalies(self) -> list[str]:
        raw = read_all(self._bootstrap, ALL_PLACES, UNCOMMITTED)
        committed = read_all(self._bootstrap, TRANSACTIONAL_PLACES, COMMITTED)
        found = [*check(self.history, FinalRead(raw)), *check_transactions(self.history, FinalRead(committed))]
        wrong = [*self._reader.wrong, *self._committed_reader.wrong, *(f"{kind}: {text}" for kind, text in found)]
        return [*wrong, *(text for group in self.groups for text in group.ledger.wrong)]

    def close(self) -> None:
        for group in self.groups:
            group.close()
        for worker in (*self._workers, *self._replaced):
            worker.close()
        for producer in self._producers:
            producer.producer.purge()
        for name in ("_reader", "_committed_reader"):
            reader = getattr(self, name, None)
            if reader is not None:
                reader.consumer.close()

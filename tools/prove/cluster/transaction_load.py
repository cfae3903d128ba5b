"""Transactions as a load on a cluster, with a history of all responses."""

from __future__ import annotations

import threading
import time
from random import Random

from testkit.history import FinalRead, History
from testkit.history_transactions import check_transactions

from tools.prove.transactions.kills import PLACES
from tools.prove.transactions.reading import COMMITTED, create_topics, read_all, undecided
from tools.prove.transactions.worker import PARTITIONS, TOPICS
from tools.prove.transactions.worker_processes import WorkerProcess

POLL_S = 0.01
ENDED_S_MAX = 60.0
SHOWN = 5
PURGED = "_PURGE"  # of the records of a transaction that is aborted


class TransactionLoad:
    """A worker that commits and aborts transactions, replaced whenever it was fenced. A thread records its events."""

    def __init__(self, bootstrap: str, seed: int, replicas: int) -> None:
        self._bootstrap = bootstrap
        self._replicas = replicas
        self._random = Random(seed)
        self._history = History(time.monotonic)
        self._workers: list[WorkerProcess] = []
        self.fenced: list[str] = []  # the last errors of the workers that were fenced
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="transaction load", daemon=True)

    @property
    def committed(self) -> int:
        return sum(worker.committed for worker in self._workers)

    def start(self) -> None:
        create_topics(self._bootstrap, TOPICS, PARTITIONS, self._replicas)
        self._start_worker()
        self._thread.start()

    def _start_worker(self) -> None:
        name, seed = f"w{len(self._workers) + 1}", self._random.randrange(1 << 32)
        self._workers.append(WorkerProcess(name, "id", self._bootstrap, seed, self._history))

    def _run(self) -> None:
        while not self._is_stopped.wait(POLL_S):
            for worker in self._workers:
                worker.read_events()
            if self._workers[-1].code not in (None, 0):
                self._workers[-1].read_events()
                self.fenced.append(self._last_error())
                self._start_worker()

    def _last_error(self) -> str:
        errors = (event.value["error"] for event in reversed(self._history.events) if "error" in event.value)
        return next((error for error in errors if PURGED not in error), "unknown")

    def finish(self) -> None:
        """Stop the worker after its transaction and check what a reader sees. Raise AssertionError with the anomalies."""
        self._is_stopped.set()
        self._thread.join()
        worker = self._workers[-1]
        worker.stop()
        deadline = time.monotonic() + ENDED_S_MAX
        while worker.is_running:
            worker.read_events()
            assert time.monotonic() < deadline, f"the transaction did not end within {ENDED_S_MAX:.0f} s"
            time.sleep(POLL_S)
        worker.read_events()
        while left := undecided(self._bootstrap, PLACES):
            assert time.monotonic() < deadline, f"transactions stay open in {left}"
        found = check_transactions(self._history, FinalRead(read_all(self._bootstrap, PLACES, COMMITTED)))
        assert not found, f"{len(found)} anomalies of transactions: {found[:SHOWN]}"

    def close(self) -> None:
        self._is_stopped.set()
        if self._thread.is_alive():
            self._thread.join()
        for worker in self._workers:
            worker.close()

"""Transactions under kill -9 and pauses of the node and the producers, with a history of all responses.

One thread drives it all. A worker announces each operation before it starts it, and a reader's records enter the
history only after everything that the workers had printed by then: nothing is in the history before its cause.
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
HEARD_S_MAX = 30.0
EARLY_KILL_PROBABILITY = 0.2  # share of starts that are killed too, during recovery
EARLY_KILL_S = (0.05, 0.6)
SUCCESSOR_PROBABILITY = 0.5  # share of paused workers that are replaced before they resume
FRESH_ID_PROBABILITY = 0.3  # share of replacements with a new transactional id, which leave the old transaction open
ENDED_S_MAX = 60.0
TURN_S = 0.01
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

    def __init__(self, bootstrap: str, history: History, listen: Callable[[], None]) -> None:
        from confluent_kafka import Consumer, TopicPartition

        self._history = history
        self._listen = listen
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
        self._listen()
        for (topic, partition), records in found.items():
            call = self._history.invoke("reader", POLL_COMMITTED, topic=topic, partition=partition)
            self._history.ok(call, records=records)
        return len(messages)


class Rounds:
    def __init__(self, node: NodeProcess, seed: int) -> None:
        self.random = Random(seed)
        self.history = History(time.monotonic)
        self.done: Counter[str] = Counter()
        self._node = node
        self._names = 0
        self._workers: list[WorkerProcess] = []
        self._gone: list[WorkerProcess] = []  # exited, or replaced and about to be fenced
        self._reader: CommittedReader | None = None

    @property
    def _everybody(self) -> list[WorkerProcess]:
        return [*self._workers, *self._gone]

    @property
    def committed(self) -> int:
        return sum(one.committed for one in self._everybody)

    @property
    def shut_out(self) -> int:
        return sum(one.code == 1 for one in self._everybody)

    @property
    def aborted(self) -> int:
        return sum(one.aborted for one in self._everybody)

    def begin(self) -> None:
        create_topics(self._node.bootstrap, TOPICS, PARTITIONS)
        self._workers = [self._hired(f"id-{number}") for number in range(WORKERS)]
        self._reader = CommittedReader(self._node.bootstrap, self.history, self._listen)

    def play(self) -> None:
        """Play one round: some load and a fault."""
        self._run(self.random.uniform(*LOAD_S), heard=True)
        fault = self.random.choices(list(FAULTS), list(FAULTS.values()))[0]
        self.done[fault] += 1
        if fault == "node killed":
            self._kill_the_node()
        elif fault == "node paused":
            self._node.pause()
            self._run(self.random.uniform(*NODE_PAUSE_S))
            self._node.resume()
        elif fault == "worker killed":
            place = self.random.randrange(WORKERS)
            self._workers[place].kill()
            self._replace(place)
        else:
            self._pause_a_worker(self._kill_the_node if fault.endswith("node killed") else lambda: None)

    def end(self) -> None:
        """Wait until every transaction has ended. Raise AssertionError if one does not."""
        assert self._reader is not None
        for one in self._workers:
            one.stop()
        deadline = time.monotonic() + ENDED_S_MAX
        while left := [one.name for one in self._everybody if one.is_there]:
            assert time.monotonic() < deadline, f"the node serves, and yet {left} could not end their transactions"
            self._reader.poll(TURN_S)
        while open_places := undecided(self._node.bootstrap, PLACES):
            assert time.monotonic() < deadline, f"a transaction without an owner has no end: {open_places}"
            self._reader.poll(TURN_S)
        while self._reader.poll(1.0):
            pass

    def wrong(self, raw: FinalRead, committed: FinalRead) -> list[str]:
        assert self._reader is not None
        anomalies = [*check(self.history, raw), *check_transactions(self.history, committed)]
        return [*self._reader.wrong, *(f"{kind}: {text}" for kind, text in anomalies)]

    def close(self) -> None:
        for one in self._everybody:
            one.close()
        if self._reader is not None:
            self._reader.consumer.close()

    def _hired(self, transactional_id: str) -> WorkerProcess:
        self._names += 1
        seed = self.random.randrange(1 << 32)
        return WorkerProcess(f"w{self._names}", transactional_id, self._node.bootstrap, seed, self.history)

    def _replace(self, place: int) -> None:
        self._gone.append(self._workers[place])
        again = self._workers[place].transactional_id
        fresh = self.random.random() < FRESH_ID_PROBABILITY
        self._workers[place] = self._hired(f"{again}-{self._names}" if fresh else again)

    def _kill_the_node(self) -> None:
        self._node.kill()
        if self.random.random() < EARLY_KILL_PROBABILITY:
            self.done["killed during recovery"] += _kill_during_start(self._node, self.random.uniform(*EARLY_KILL_S))
        self._run(self.random.uniform(0, DOWN_S_MAX))
        if not self._node.is_running:
            self._node.start()

    def _pause_a_worker(self, meanwhile: Callable[[], None]) -> None:
        place = self.random.randrange(WORKERS)
        sleeper = self._workers[place]
        sleeper.pause()
        try:
            meanwhile()
            if self.random.random() < SUCCESSOR_PROBABILITY:
                self._replace(place)
            self._run(self.random.uniform(*WORKER_PAUSE_S))
        finally:
            sleeper.resume()
        if sleeper in self._gone:
            sleeper.stop()  # in case it is not fenced

    def _run(self, seconds: float, heard: bool = False) -> None:
        """Run for this long and, with `heard`, until something was committed.

        A fault should hit a node that is working.
        """
        now = time.monotonic()
        end, deadline, before = now + seconds, now + HEARD_S_MAX, self.committed
        while time.monotonic() < end or (heard and self.committed == before):
            assert time.monotonic() < deadline, f"nothing was committed for {HEARD_S_MAX} s"
            self._turn()

    def _turn(self) -> None:
        if self._reader is not None:
            self._reader.poll(TURN_S)
        for place, one in enumerate(self._workers):
            if one.code not in (None, 0):
                self._replace(place)

    def _listen(self) -> None:
        for one in self._everybody:
            one.listen()


def rounds_of_kills(rounds: int, seed: int, say: Callable[[str], None] = lambda text: None) -> str:
    """Run the rounds and return a summary. Raise AssertionError with the anomalies found."""
    with NodeProcess(SETTINGS) as node:
        story = Rounds(node, seed)
        try:
            story.begin()
            for number in range(rounds):
                story.play()
                if (number + 1) % 10 == 0:
                    say(f"round {number + 1}: {story.committed} committed, {story.aborted} aborted, seed {seed}")
            story.end()
            committed, raw = (read_all(node.bootstrap, PLACES, level) for level in (COMMITTED, UNCOMMITTED))
            assert node.terminate() == 0, f"no clean stop after all this: {node.log_text()[-2000:]}"
            node.start()
            again = read_all(node.bootstrap, PLACES, COMMITTED)
        finally:
            story.close()
        log = node.log_text()
    wrong = story.wrong(FinalRead(raw), FinalRead(committed))
    wrong += [f"after a clean restart {place} has changed" for place in PLACES if committed[place] != again[place]]
    wrong += [line for line in log.splitlines() if "Traceback" in line or " ERROR " in line or "CRC" in line]
    assert not wrong, f"seed {seed}: {len(wrong)} anomalies, the first: " + "; ".join(wrong[:8])
    seen = sum(map(len, committed.values()))
    faults = ", ".join(f"{count} × {what}" for what, count in sorted(story.done.items()) if count)
    return (
        f"{rounds} rounds ({faults}), {story.shut_out} producers shut out, {story.committed} transactions committed and "
        f"{story.aborted} aborted, {seen} records seen, {sum(map(len, raw.values())) - seen} hidden, 0 anomalies (seed {seed})"
    )


def _kill_during_start(node: NodeProcess, after_s: float) -> int:
    """Return 1 if the kill came before the node served, else 0."""
    try:
        node.start(after_s)
    except ProcessFailed:
        return 1
    node.kill()
    return 0

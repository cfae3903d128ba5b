"""Copiers that are killed, paused and replaced, on a node that is killed; the copy must have every record once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from testkit.kafka_peer import available, java, libraries

from headrace.testing.processes import NodeProcess
from tools.prove.registry import ROOT
from tools.prove.transactions.copier import ABORT_PROBABILITY, BATCH_MAX, COPY
from tools.prove.transactions.reading import COMMITTED, UNCOMMITTED, create_topics, ends, read_all, undecided

PARTITIONS = 4
RECORDS_PER_KILL = 100
NODE_KILL_PROBABILITY = 0.2
ZOMBIE_PROBABILITY = 0.25  # share of kills before which a paused copier is replaced and then resumed
ZOMBIE_S = (0.5, 3.0)
BLIND_PROBABILITY = 0.3  # share of kills that do not wait for a commit and so hit a copier that has hardly started
BLIND_S_MAX = 2.0
COMMITTED_S_MAX = 60.0
AFTER_COMMIT_S_MAX = 0.3
CAUGHT_UP_S_MAX = 120.0
ENDED_S_MAX = 60.0
COMPILE_S_MAX = 120.0
POLL_S = 0.02
SOURCE_JAVA = Path(__file__).with_name("Copier.java")
JAVA = "Java"
# How many copiers share the partitions. aiokafka's cannot, because it does not send the generation of its offsets.
COPIERS = {"confluent-kafka": 2, "aiokafka": 1, JAVA: 2}
SETTINGS = {
    "group.initial.rebalance.delay.ms": "100",
    "group.min.session.timeout.ms": "500",
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "5",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    "log.flush.offset.checkpoint.interval.ms": "300",
}


def java_missing() -> str | None:
    """Return why Java's copier cannot be compiled here, or None."""
    return available() or (None if shutil.which("javac") else "no JDK: javac is not on the path")


def compile_java(directory: Path, source: Path = SOURCE_JAVA) -> None:
    done = subprocess.run(
        ["javac", "-cp", f"{libraries()}/*", "-d", str(directory), str(source)],
        capture_output=True,
        text=True,
        timeout=COMPILE_S_MAX,
    )
    assert done.returncode == 0, f"javac: {done.stderr[-2000:]}"


@dataclass(frozen=True)
class Route:
    """Source and target of a copy, and the group that stores its position."""

    bootstrap: str
    source: str
    target: str
    group: str


class CopierProcess:
    """A process that runs `copier` or `Copier.java`, and its number of transactions."""

    def __init__(self, client: str, identity: str, route: Route, seed: int, classes: Path | None) -> None:
        self.identity = identity
        self.committed = self.aborted = 0
        self._left = b""
        where = [identity, route.bootstrap, route.source, route.target, route.group, str(seed)]
        command = (
            java("Copier", *where, str(ABORT_PROBABILITY), str(BATCH_MAX), classes=classes)
            if client == JAVA
            else [sys.executable, "-m", "tools.prove.transactions.copier", client, *where]
        )
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, cwd=ROOT, **pipes)  # type: ignore[call-overload]
        self._stream = self._process.stdout
        os.set_blocking(self._stream.fileno(), False)

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def read_events(self) -> None:
        """Count the transactions that the copier has reported by now."""
        while True:
            try:
                more = os.read(self._stream.fileno(), 1 << 16)
            except BlockingIOError:
                return
            if not more:
                return
            *lines, self._left = (self._left + more).split(b"\n")
            names = [json.loads(line)["name"] for line in lines]
            self.committed += names.count("committed")
            self.aborted += names.count("aborted")

    def pause(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(ENDED_S_MAX)
        self.read_events()

    def stop(self) -> None:
        """Send SIGTERM and wait for the copier to exit."""
        self._process.terminate()
        try:
            self._process.wait(ENDED_S_MAX)
        finally:
            self.kill()

    def close(self) -> None:
        self.kill()
        self._stream.close()


class Copying:
    """One source, one target, and the copiers of one client between them."""

    def __init__(self, node: NodeProcess, client: str, seed: int, classes: Path | None = None) -> None:
        from confluent_kafka import Producer

        self._node = node
        self._client = client
        self._classes = classes
        self._random = Random(f"{seed} {client}")
        name = client.lower()
        self._route = Route(node.bootstrap, f"{name}-source", f"{name}-target", f"{name}-copiers")
        self._sources = [(self._route.source, index) for index in range(PARTITIONS)]
        self._targets = [(self._route.target, index) for index in range(PARTITIONS)]
        self._copiers: list[CopierProcess] = []
        self._replaced: list[CopierProcess] = []
        self.fed = self.kills = self.node_kills = self.zombies = self.failed = 0
        self._producer = Producer({"bootstrap.servers": node.bootstrap, "enable.idempotence": True, "log_level": 0})

    @property
    def committed(self) -> int:
        return sum(one.committed for one in (*self._copiers, *self._replaced))

    @property
    def aborted(self) -> int:
        return sum(one.aborted for one in (*self._copiers, *self._replaced))

    def run(self, kills: int, print_progress: Callable[[str], None] = lambda text: None) -> str:
        """Run the copiers under kills and return a summary.

        Raise AssertionError unless each record is there once, in order.
        """
        create_topics(self._node.bootstrap, (self._route.source, self._route.target), PARTITIONS)
        self._copiers = [self._start_copier(f"{self._client}-{number}") for number in range(COPIERS[self._client])]
        try:
            while self.kills < kills:
                self._feed_source()
                self._kill_one()
                if self.kills % 10 == 0:
                    print_progress(
                        f"{self._client}: {self.kills} kills, {self.committed} committed, {self.aborted} aborted"
                    )
            self._finish()
        finally:
            for one in (*self._copiers, *self._replaced):
                one.close()
            self._producer.purge()
        return self._check_copy()

    def _feed_source(self) -> None:
        for _ in range(RECORDS_PER_KILL):
            partition = self._random.randrange(PARTITIONS)
            self._producer.produce(self._route.source, f"{self.fed}", partition=partition)
            self.fed += 1

    def _kill_one(self) -> None:
        """Kill one copier, often after a commit, sometimes after a pause and together with the node."""
        index = self._random.randrange(len(self._copiers))
        before = self.committed
        if self._random.random() < BLIND_PROBABILITY:
            self._wait(self._random.uniform(0, BLIND_S_MAX))
        else:
            self._wait_until(lambda: self.committed > before, COMMITTED_S_MAX, "no copier has committed a transaction")
            self._wait(self._random.uniform(0, AFTER_COMMIT_S_MAX))
        if self._random.random() < ZOMBIE_PROBABILITY:
            self._pause_and_replace(index)
        if self._random.random() < NODE_KILL_PROBABILITY:
            self._node.kill()
            self.node_kills += 1
            self._wait(self._random.uniform(0, 0.5))
            self._node.start()
        self._copiers[index].kill()
        self.kills += 1
        self._replace(index)

    def _pause_and_replace(self, index: int) -> None:
        """Pause a copier, replace it and resume it; it must not be able to commit any more."""
        paused = self._copiers[index]
        paused.pause()
        self._replace(index)
        self._wait(self._random.uniform(*ZOMBIE_S))
        paused.resume()
        self.zombies += 1
        self._wait(self._random.uniform(0, BLIND_S_MAX))

    def _finish(self) -> None:
        assert self._producer.flush(CAUGHT_UP_S_MAX) == 0, "the source could not be written"
        sources = ends(self._node.bootstrap, self._sources, UNCOMMITTED)
        self._wait_until(
            lambda: self._positions() == sources, CAUGHT_UP_S_MAX, "the copiers have not reached the end of the source"
        )
        for one in self._replaced:
            one.kill()  # some still wait for a response, but none of them can commit any more
        for one in self._copiers:
            one.stop()
        self._wait_until(
            lambda: not undecided(self._node.bootstrap, self._targets),
            ENDED_S_MAX,
            "a transaction has not ended",
            replace=False,
        )

    def _positions(self) -> dict[tuple[str, int], int]:
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self._node.bootstrap, "group.id": self._route.group, "log_level": 0})
        try:
            places = [TopicPartition(*place) for place in self._sources]
            return {(one.topic, one.partition): max(one.offset, 0) for one in consumer.committed(places, ENDED_S_MAX)}
        finally:
            consumer.close()

    def _check_copy(self) -> str:
        """Compare the copy with the source and return a summary."""
        bootstrap = self._node.bootstrap
        sources = read_all(bootstrap, self._sources, UNCOMMITTED)
        copies, raw = read_all(bootstrap, self._targets, COMMITTED), read_all(bootstrap, self._targets, UNCOMMITTED)
        assert sum(map(len, sources.values())) == self.fed, "the source does not have all records that were written"
        for source, target in zip(self._sources, self._targets, strict=True):
            wanted = [COPY + value for _, value in sources[source]]
            found = [value for _, value in copies[target]]
            lost, twice = len(set(wanted) - set(found)), len(found) - len(set(found))
            assert found == wanted, f"{target}: of {len(wanted)} records {lost} are lost and {twice} are duplicated"
        hidden = sum(map(len, raw.values())) - self.fed
        return (
            f"{self._client}: {self.kills} kills, {self.zombies} zombies, {self.failed} failed by themselves, "
            f"{self.node_kills} kills of the node, {self.aborted} aborts, {self.fed} records once each, {hidden} hidden"
        )

    def _start_copier(self, identity: str) -> CopierProcess:
        return CopierProcess(self._client, identity, self._route, self._random.randrange(1 << 32), self._classes)

    def _replace(self, index: int) -> None:
        self._replaced.append(self._copiers[index])
        self._copiers[index] = self._start_copier(self._copiers[index].identity)

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._poll()

    def _wait_until(self, done: Callable[[], bool], seconds_max: float, failure: str, replace: bool = True) -> None:
        deadline = time.monotonic() + seconds_max
        while not done():
            assert time.monotonic() < deadline, f"{self._client}: {failure} within {seconds_max:.0f} s"
            self._poll(replace)

    def _poll(self, replace: bool = True) -> None:
        self._producer.poll(POLL_S)
        for one in self._replaced:
            one.read_events()
        for index, one in enumerate(self._copiers):
            one.read_events()
            if replace and not one.is_running:
                self.failed += 1  # by an unrecoverable error, for example because the node was down for long
                self._replace(index)

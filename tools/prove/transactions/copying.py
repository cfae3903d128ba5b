"""Copiers that are killed, paused and replaced, on a node that is killed: the copy has every record once, in order."""

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
RECORDS_A_KILL = 100
NODE_KILL_PROBABILITY = 0.2
ZOMBIE_PROBABILITY = 0.25  # share of kills before which a paused copier is replaced and then resumed
ZOMBIE_S = (0.5, 3.0)
BLIND_PROBABILITY = 0.3  # share of kills that do not wait for a commit and so hit a copier that has hardly started
BLIND_S_MAX = 2.0
HEARD_S_MAX = 60.0
AFTER_COMMIT_S_MAX = 0.3
CAUGHT_UP_S_MAX = 120.0
ENDED_S_MAX = 60.0
COMPILE_S_MAX = 120.0
TURN_S = 0.02
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
    def is_there(self) -> bool:
        return self._process.poll() is None

    def listen(self) -> None:
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
        self.listen()

    def end(self) -> None:
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
        self._gone: list[CopierProcess] = []
        self.fed = self.kills = self.node_kills = self.zombies = self.gave_up = 0
        self._producer = Producer({"bootstrap.servers": node.bootstrap, "enable.idempotence": True, "log_level": 0})

    @property
    def committed(self) -> int:
        return sum(one.committed for one in (*self._copiers, *self._gone))

    @property
    def aborted(self) -> int:
        return sum(one.aborted for one in (*self._copiers, *self._gone))

    def play(self, kills: int, say: Callable[[str], None] = lambda text: None) -> str:
        """Run the copiers under kills and return a summary.

        Raise AssertionError unless each record is there once, in order.
        """
        create_topics(self._node.bootstrap, (self._route.source, self._route.target), PARTITIONS)
        self._copiers = [self._hired(f"{self._client}-{number}") for number in range(COPIERS[self._client])]
        try:
            while self.kills < kills:
                self._feed()
                self._strike()
                if self.kills % 10 == 0:
                    say(f"{self._client}: {self.kills} kills, {self.committed} committed, {self.aborted} aborted")
            self._finish()
        finally:
            for one in (*self._copiers, *self._gone):
                one.close()
            self._producer.purge()
        return self._verdict()

    def _feed(self) -> None:
        for _ in range(RECORDS_A_KILL):
            partition = self._random.randrange(PARTITIONS)
            self._producer.produce(self._route.source, f"{self.fed}", partition=partition)
            self.fed += 1

    def _strike(self) -> None:
        place = self._random.randrange(len(self._copiers))
        before = self.committed
        if self._random.random() < BLIND_PROBABILITY:
            self._wait(self._random.uniform(0, BLIND_S_MAX))
        else:
            self._until(lambda: self.committed > before, HEARD_S_MAX, "no copier has committed anything")
            self._wait(self._random.uniform(0, AFTER_COMMIT_S_MAX))
        if self._random.random() < ZOMBIE_PROBABILITY:
            self._sleep_and_wake(place)
        if self._random.random() < NODE_KILL_PROBABILITY:
            self._node.kill()
            self.node_kills += 1
            self._wait(self._random.uniform(0, 0.5))
            self._node.start()
        self._copiers[place].kill()
        self.kills += 1
        self._replace(place)

    def _sleep_and_wake(self, place: int) -> None:
        """Pause a copier, replace it and resume it; it must not be able to commit any more."""
        sleeper = self._copiers[place]
        sleeper.pause()
        self._replace(place)
        self._wait(self._random.uniform(*ZOMBIE_S))
        sleeper.resume()
        self.zombies += 1
        self._wait(self._random.uniform(0, BLIND_S_MAX))

    def _finish(self) -> None:
        assert self._producer.flush(CAUGHT_UP_S_MAX) == 0, "the source could not be written"
        sources = ends(self._node.bootstrap, self._sources, UNCOMMITTED)
        self._until(lambda: self._positions() == sources, CAUGHT_UP_S_MAX, "the copiers do not come to the end")
        for one in self._gone:
            one.kill()  # some still wait for a response, but none may do anything any more
        for one in self._copiers:
            one.end()
        self._until(
            lambda: not undecided(self._node.bootstrap, self._targets),
            ENDED_S_MAX,
            "a transaction has no end",
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

    def _verdict(self) -> str:
        bootstrap = self._node.bootstrap
        sources = read_all(bootstrap, self._sources, UNCOMMITTED)
        copies, raw = read_all(bootstrap, self._targets, COMMITTED), read_all(bootstrap, self._targets, UNCOMMITTED)
        assert sum(map(len, sources.values())) == self.fed, "the source is not what was written"
        for source, target in zip(self._sources, self._targets, strict=True):
            wanted = [COPY + value for _, value in sources[source]]
            found = [value for _, value in copies[target]]
            lost, twice = len(set(wanted) - set(found)), len(found) - len(set(found))
            assert found == wanted, f"{target}: of {len(wanted)} records {lost} are lost and {twice} are there twice"
        hidden = sum(map(len, raw.values())) - self.fed
        return (
            f"{self._client}: {self.kills} kills, {self.zombies} zombies, {self.gave_up} gave up, {self.node_kills} kills of the node, "
            f"{self.aborted} aborts, {self.fed} records once each, {hidden} hidden"
        )

    def _hired(self, identity: str) -> CopierProcess:
        return CopierProcess(self._client, identity, self._route, self._random.randrange(1 << 32), self._classes)

    def _replace(self, place: int) -> None:
        self._gone.append(self._copiers[place])
        self._copiers[place] = self._hired(self._copiers[place].identity)

    def _wait(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self._turn()

    def _until(self, done: Callable[[], bool], seconds_max: float, else_what: str, replace: bool = True) -> None:
        deadline = time.monotonic() + seconds_max
        while not done():
            assert time.monotonic() < deadline, f"{self._client}: {else_what} within {seconds_max:.0f} s"
            self._turn(replace)

    def _turn(self, replace: bool = True) -> None:
        self._producer.poll(TURN_S)
        for one in self._gone:
            one.listen()
        for place, one in enumerate(self._copiers):
            one.listen()
            if replace and not one.is_there:  # after an unrecoverable error, such as a long absence of the node
                self.gave_up += 1
                self._replace(place)

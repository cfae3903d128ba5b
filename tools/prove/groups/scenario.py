"""The life of one group: members join, one leaves, one is killed, the node is killed and restarted."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from testkit.kafka_peer import KafkaPeer, java

from headrace.base.errors import HeadraceError
from headrace.client.admin.groups import committed_offsets
from headrace.client.wire.cluster import Cluster
from headrace.testing.processes import LOOPBACK, NodeProcess
from tools.prove.groups.member import SESSION_MS
from tools.prove.registry import ROOT

SETTLE_S_MAX = 90.0
RECORDS = 1500
WATCH_S = 0.3
ENDED_S_MAX = 30.0
JAVA = "Java"
VERIFIABLE = "org.apache.kafka.tools.VerifiableConsumer"
_JAVA_ASSIGNORS = {
    "range": "RangeAssignor",
    "roundrobin": "RoundRobinAssignor",
    "sticky": "StickyAssignor",
    "cooperative-sticky": "CooperativeStickyAssignor",
}


@dataclass(frozen=True)
class Cast:
    client: str
    assignor: str  # or `consumer`: the broker assigns (KIP-848)
    members: int

    def __str__(self) -> str:
        return f"{self.members} × {self.client} with {self.assignor}"

    def command(self, bootstrap: str, topic: str, group: str) -> list[str]:
        if self.client != JAVA:
            module = "tools.prove.groups.member"
            return [sys.executable, "-m", module, self.client, self.assignor, bootstrap, topic, group]
        where = ["--bootstrap-server", bootstrap, "--topic", topic, "--group-id", group, "--reset-policy", "earliest"]
        if self.assignor == "consumer":
            return java(VERIFIABLE, *where, "--group-protocol", "consumer")
        name = f"org.apache.kafka.clients.consumer.{_JAVA_ASSIGNORS[self.assignor]}"
        return java(VERIFIABLE, *where, "--session-timeout", str(SESSION_MS), "--assignment-strategy", name)


class Actor:
    """A member process and the state that it reports."""

    def __init__(self, cast: Cast, bootstrap: str, topic: str, group: str, read: dict[int, set[int]]) -> None:
        self.owned: set[int] = set()
        self._read = read
        self._process = subprocess.Popen(
            cast.command(bootstrap, topic, group),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                said: dict[str, Any] = json.loads(line)
            except ValueError:
                continue  # a message of the client library
            partitions = said.get("partitions", [])
            if said.get("name") == "partitions_assigned":
                self.owned |= {one["partition"] for one in partitions}
            elif said.get("name") == "partitions_revoked":
                self.owned -= {one["partition"] for one in partitions}
            elif said.get("name") == "records_consumed":
                for one in partitions:
                    self._read[one["partition"]].update(range(one["minOffset"], one["maxOffset"] + 1))

    @property
    def is_there(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        self._process.kill()
        self._over()

    def leave(self) -> None:
        self._process.terminate()
        self._over()

    def _over(self) -> None:
        try:
            self._process.wait(ENDED_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join(ENDED_S_MAX)
        self.owned = set()


@dataclass
class Watch:
    """Polls the committed offsets as an administrator: they must never go back."""

    port: int
    group: str
    newest: dict[int, int] = field(default_factory=dict)
    went_back: list[str] = field(default_factory=list)
    looks: int = 0
    over: bool = False

    def run(self) -> None:
        while not self.over:
            with suppress(TimeoutError, OSError, HeadraceError):  # while the node is down
                asyncio.run(self._look())
            time.sleep(WATCH_S)

    async def _look(self) -> None:
        async with Cluster([(LOOPBACK, self.port)], timeout_s=5.0) as cluster:
            found = await committed_offsets(cluster, self.group)
        self.looks += 1
        for (_, partition), one in found.items():
            if one.offset < self.newest.get(partition, 0):
                self.went_back.append(f"partition {partition} from {self.newest[partition]} to {one.offset}")
            self.newest[partition] = max(one.offset, self.newest.get(partition, 0))


class Story:
    def __init__(self, node: NodeProcess | KafkaPeer, cast: Cast, number: int) -> None:
        self._node = node
        self._cast = cast
        self._topic = self._group = f"group-{number}"
        self._partitions = 2 * cast.members
        self._read: dict[int, set[int]] = {index: set() for index in range(self._partitions)}
        self._actors: list[Actor] = []

    def play(self) -> int:
        """Play the story and return the number of records read. Raise AssertionError for any violation."""
        admin = AdminClient({"bootstrap.servers": self._node.bootstrap, "log_level": 2})
        admin.create_topics([NewTopic(self._topic, self._partitions, 1)])[self._topic].result(30)
        watch = Watch(self._node.port, self._group)
        watcher = threading.Thread(target=watch.run, daemon=True)
        watcher.start()
        try:
            self._act()
        finally:
            watch.over = True
            for actor in self._actors:
                actor.kill()
            watcher.join(ENDED_S_MAX)
        assert not watch.went_back, f"committed offsets went back: {watch.went_back[:3]}"
        assert watch.looks > 0, "nobody could look at the committed offsets"
        return sum(map(len, self._read.values()))

    def _act(self) -> None:
        for _ in range(self._cast.members):
            self._join()
        self._settle("the first members share the partitions")
        self._produce(RECORDS // 3)
        self._actors.pop().leave()
        self._settle("one has left")
        self._produce(RECORDS // 3)
        self._join()
        self._actors.pop(0).kill()
        self._settle("one is killed, another has come")
        self._node.kill()
        self._node.start()
        self._join()
        self._produce(RECORDS // 3)
        self._settle("the node was killed, one more has come")
        self._wait("every record is read", lambda: all(len(self._read[i]) >= self._ends[i] for i in self._read))

    def _join(self) -> None:
        self._actors.append(Actor(self._cast, self._node.bootstrap, self._topic, self._group, self._read))

    def _produce(self, count: int) -> None:
        producer = Producer({"bootstrap.servers": self._node.bootstrap, "enable.idempotence": True, "log_level": 2})
        self._ends: dict[int, int] = dict(getattr(self, "_ends", {}))
        for number in range(count):
            partition = number % self._partitions
            producer.produce(self._topic, b"x" * 20, partition=partition)
            self._ends[partition] = self._ends.get(partition, 0) + 1
        assert producer.flush(60) == 0, "the producer could not get rid of its records"

    def _settle(self, what: str) -> None:
        everything = list(range(self._partitions))
        self._wait(
            f"{what}, and partitions are assigned once each",
            lambda: (
                sorted(index for one in self._actors for index in list(one.owned)) == everything
                and all(one.owned for one in self._actors)
            ),
        )

    def _wait(self, what: str, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SETTLE_S_MAX
        while not done():
            gone = [one for one in self._actors if not one.is_there]
            assert not gone, f"{self._cast}: {len(gone)} members ended by themselves before {what}"
            owned = [sorted(one.owned) for one in self._actors]
            missing = sum(self._ends[i] - len(self._read[i]) for i in self._read) if hasattr(self, "_ends") else 0
            assert time.monotonic() < deadline, f"{self._cast}: not seen: {what}; owned {owned}, {missing} unread"
            time.sleep(0.05)

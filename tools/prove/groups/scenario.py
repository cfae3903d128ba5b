"""A scenario of one group: members join, one leaves, one is killed, the node is killed and restarted."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
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
ERRORS_SHOWN_BYTES = 3000
JAVA = "Java"
VERIFIABLE = "org.apache.kafka.tools.VerifiableConsumer"
_JAVA_ASSIGNORS = {
    "range": "RangeAssignor",
    "roundrobin": "RoundRobinAssignor",
    "sticky": "StickyAssignor",
    "cooperative-sticky": "CooperativeStickyAssignor",
}


@dataclass(frozen=True)
class GroupSpec:
    """The client, the assignor and the size of a group."""

    client: str
    assignor: str  # name of an assignor, or `consumer` if the broker assigns (KIP-848)
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


class MemberProcess:
    """A member process and the state that it reports."""

    def __init__(self, spec: GroupSpec, bootstrap: str, topic: str, group: str, read: dict[int, set[int]]) -> None:
        self.owned: set[int] = set()
        self._read = read
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 -- open as long as the process runs
        self._process = subprocess.Popen(
            spec.command(bootstrap, topic, group),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._reader = threading.Thread(target=self._read_events, daemon=True)
        self._reader.start()

    def _read_events(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            try:
                event: dict[str, Any] = json.loads(line)
            except ValueError:
                continue  # a message of the client library
            self.handle(event)

    def handle(self, event: dict[str, Any]) -> None:
        """Adopt an event of the member; called in the thread that reads its output."""
        partitions = event.get("partitions", [])
        if event.get("name") == "partitions_assigned":
            self.owned |= {one["partition"] for one in partitions}
        elif event.get("name") == "partitions_revoked":
            self.owned -= {one["partition"] for one in partitions}
        elif event.get("name") == "records_consumed":
            for one in partitions:
                self._read[one["partition"]].update(range(one["minOffset"], one["maxOffset"] + 1))

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def errors_end(self) -> str:
        """Return the end of what the member has written to standard error."""
        self._errors.seek(0)
        return self._errors.read()[-ERRORS_SHOWN_BYTES:].decode(errors="replace")

    def kill(self) -> None:
        self._process.kill()
        self._wait_for_exit()

    def leave(self) -> None:
        self._process.terminate()
        self._wait_for_exit()

    def _wait_for_exit(self) -> None:
        try:
            self._process.wait(ENDED_S_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(ENDED_S_MAX)
        self.owned = set()


@dataclass
class OffsetWatch:
    """Polls the committed offsets with an admin client; they must never decrease."""

    port: int
    group: str
    newest: dict[int, int] = field(default_factory=dict)
    decreased: list[str] = field(default_factory=list)
    polls: int = 0
    is_stopped: bool = False

    def run(self) -> None:
        while not self.is_stopped:
            with suppress(TimeoutError, OSError, HeadraceError):  # while the node is down
                asyncio.run(self._poll())
            time.sleep(WATCH_S)

    async def _poll(self) -> None:
        async with Cluster([(LOOPBACK, self.port)], timeout_s=5.0) as cluster:
            found = await committed_offsets(cluster, self.group)
        self.polls += 1
        for (_, partition), one in found.items():
            if one.offset < self.newest.get(partition, 0):
                self.decreased.append(f"partition {partition} from {self.newest[partition]} to {one.offset}")
            self.newest[partition] = max(one.offset, self.newest.get(partition, 0))


class GroupScenario:
    """One group on one node, with its topic and its members."""

    def __init__(self, node: NodeProcess | KafkaPeer, spec: GroupSpec, number: int) -> None:
        self._node = node
        self._spec = spec
        self._topic = self._group = f"group-{number}"
        self._partitions = 2 * spec.members
        self._read: dict[int, set[int]] = {index: set() for index in range(self._partitions)}
        self._ends: dict[int, int] = dict.fromkeys(range(self._partitions), 0)  # records produced by partition
        self._members: list[MemberProcess] = []

    def run(self) -> int:
        """Run the scenario and return the number of records read. Raise AssertionError for any violation."""
        admin = AdminClient({"bootstrap.servers": self._node.bootstrap, "log_level": 2})
        admin.create_topics([NewTopic(self._topic, self._partitions, 1)])[self._topic].result(30)
        watch = OffsetWatch(self._node.port, self._group)
        watcher = threading.Thread(target=watch.run, daemon=True)
        watcher.start()
        try:
            self._run_steps()
        finally:
            watch.is_stopped = True
            for member in self._members:
                member.kill()
            watcher.join(ENDED_S_MAX)
        assert not watch.decreased, f"committed offsets decreased: {watch.decreased[:3]}"
        assert watch.polls > 0, "the committed offsets could never be read"
        return sum(map(len, self._read.values()))

    def _run_steps(self) -> None:
        for _ in range(self._spec.members):
            self._join()
        self._settle("the first members share the partitions")
        self._produce(RECORDS // 3)
        self._members.pop().leave()
        self._settle("a member has left")
        self._produce(RECORDS // 3)
        self._join()
        self._members.pop(0).kill()
        self._settle("a member was killed and another has joined")
        self._node.kill()
        self._node.start()
        self._join()
        self._produce(RECORDS // 3)
        self._settle("the node was killed and one more member has joined")
        self._wait("every record is read", lambda: all(len(self._read[i]) >= self._ends[i] for i in self._read))

    def _join(self) -> None:
        self._members.append(MemberProcess(self._spec, self._node.bootstrap, self._topic, self._group, self._read))

    def _produce(self, count: int) -> None:
        producer = Producer({"bootstrap.servers": self._node.bootstrap, "enable.idempotence": True, "log_level": 2})
        for number in range(count):
            partition = number % self._partitions
            producer.produce(self._topic, b"x" * 20, partition=partition)
            self._ends[partition] += 1
        assert producer.flush(60) == 0, "not all records were delivered"

    def _settle(self, what: str) -> None:
        everything = list(range(self._partitions))
        self._wait(
            f"{what}, and partitions are assigned once each",
            lambda: (
                sorted(index for one in self._members for index in list(one.owned)) == everything
                and all(one.owned for one in self._members)
            ),
        )

    def _wait(self, what: str, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + SETTLE_S_MAX
        while not done():
            exited = [one for one in self._members if not one.is_running]
            assert not exited, (
                f"{self._spec}: {len(exited)} members exited by themselves before {what}: {exited[0].errors_end()}"
            )
            owned = [sorted(one.owned) for one in self._members]
            unread = sum(self._ends[i] - len(self._read[i]) for i in self._read)
            assert time.monotonic() < deadline, (
                f"{self._spec}: not within {SETTLE_S_MAX:.0f} s: {what}; owned {owned}, {unread} unread"
            )
            time.sleep(0.05)

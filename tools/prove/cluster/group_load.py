"""Consumer groups as load on a cluster, and the ledger that checks what their members read and commit."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from random import Random
from typing import Any

from headrace.base.errors import HeadraceError
from headrace.client.admin.groups import committed_offsets
from headrace.client.wire.cluster import Cluster
from tools.prove.groups.scenario import GroupSpec, MemberProcess

OFFSETS_S_MAX = 5.0
POLL_S = 0.1


class GroupLedger:
    """What the members of one group have read and committed, partition by partition. Threads of the members write it.

    A member must not read below an offset whose commit was acknowledged before the partition was assigned to it.
    """

    def __init__(self, title: str, partitions: int) -> None:
        self._title = title
        self._lock = threading.Lock()
        self._floors: dict[tuple[str, int], int] = {}  # committed offsets at the assignment, by member and partition
        self.read: dict[int, set[int]] = {index: set() for index in range(partitions)}
        self.committed: dict[int, int] = dict.fromkeys(range(partitions), 0)  # highest acknowledged offsets
        self.wrong: list[str] = []

    def note_assigned(self, member: str, partitions: list[int]) -> None:
        with self._lock:
            self._floors.update({(member, index): self.committed[index] for index in partitions})

    def note_consumed(self, member: str, partition: int, low: int, high: int) -> None:
        with self._lock:
            floor = self._floors.get((member, partition), 0)
            if low < floor:
                self.wrong.append(
                    f"{self._title}: {member} read partition {partition} from {low}, but {floor} had been committed"
                )
            self.read[partition].update(range(low, high + 1))

    def note_committed(self, partition: int, offset: int) -> None:
        with self._lock:
            self.committed[partition] = max(offset, self.committed[partition])

    def unread(self, ends: dict[int, int]) -> int:
        """Return how many offsets below these ends no member has read."""
        with self._lock:
            return sum(end - len(self.read[index] & set(range(end))) for index, end in ends.items())

    def behind(self, stored: dict[int, int]) -> dict[int, tuple[int, int]]:
        """Return the partitions whose stored offset is below the acknowledged one, with both offsets."""
        with self._lock:
            return {
                index: (stored.get(index, 0), offset)
                for index, offset in self.committed.items()
                if stored.get(index, 0) < offset
            }


class LedgerMember(MemberProcess):
    """A member whose events are checked against the ledger of its group."""

    def __init__(self, name: str, spec: GroupSpec, bootstrap: str, topic: str, group: str, ledger: GroupLedger) -> None:
        self._name = name
        self._ledger = ledger
        self.refused_commits = 0
        super().__init__(spec, bootstrap, topic, group, ledger.read)

    def handle(self, event: dict[str, Any]) -> None:
        if event.get("name") == "partitions_assigned":
            self._ledger.note_assigned(self._name, [one["partition"] for one in event["partitions"]])
        elif event.get("name") == "records_consumed":
            for one in event["partitions"]:
                self._ledger.note_consumed(self._name, one["partition"], one["minOffset"], one["maxOffset"])
        elif event.get("name") == "offsets_committed":
            self.refused_commits += not event["success"]
            for one in event.get("offsets", []):
                self._ledger.note_committed(one["partition"], one["offset"])
        super().handle(event)


class GroupLoad:
    """One group with its members, any of which can be killed and replaced."""

    def __init__(self, spec: GroupSpec, bootstrap: str, topic: str, partitions: int) -> None:
        self.group = f"{spec.client}-{spec.assignor}"
        self.ledger = GroupLedger(self.group, partitions)
        self._spec = spec
        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._names = 0
        self._former: list[LedgerMember] = []
        self._members: list[LedgerMember] = []

    def start(self) -> None:
        self._members = [self._join() for _ in range(self._spec.members)]

    def _join(self) -> LedgerMember:
        self._names += 1
        name = f"member {self._names}"
        return LedgerMember(name, self._spec, self._bootstrap, self._topic, self.group, self.ledger)

    def kill_one(self, random: Random) -> None:
        """Kill a member, which its coordinator notices only after the session timeout, and start another."""
        index = random.randrange(len(self._members))
        self._members[index].kill()
        self._former.append(self._members[index])
        self._members[index] = self._join()

    @property
    def read(self) -> int:
        return sum(map(len, self.ledger.read.values()))

    @property
    def refused_commits(self) -> int:
        return sum(one.refused_commits for one in (*self._members, *self._former))

    @property
    def is_complete(self) -> bool:
        """Return whether each partition belongs to exactly one member. Raise AssertionError if a member has exited."""
        exited = [one for one in self._members if not one.is_running]
        assert not exited, f"{len(exited)} members of {self._spec} exited by themselves: {exited[0].errors_end()}"
        return sorted(index for one in self._members for index in list(one.owned)) == list(range(self._partitions))

    def describe(self) -> str:
        return f"{self.group}: members own {[sorted(one.owned) for one in self._members]}, {self.read} records read"

    def offsets_behind(self) -> dict[int, tuple[int, int]]:
        """Return what the ledger finds missing in the offsets that the group's coordinator returns now."""
        return self.ledger.behind(self.stored_offsets())

    def stored_offsets(self) -> dict[int, int]:
        """Return the committed offsets; none while the coordinator cannot be reached."""
        with suppress(TimeoutError, OSError, HeadraceError):
            return asyncio.run(self._stored_offsets())
        return {}

    async def _stored_offsets(self) -> dict[int, int]:
        hosts = [address.rpartition(":") for address in self._bootstrap.split(",")]
        async with Cluster([(host, int(port)) for host, _, port in hosts], timeout_s=OFFSETS_S_MAX) as cluster:
            found = await committed_offsets(cluster, self.group)
        return {place.partition: one.offset for place, one in found.items()}

    def wait_until_read(self, ends: dict[int, int], seconds_max: float) -> None:
        """Wait until the group has read and committed everything below these ends; otherwise raise AssertionError."""
        deadline = time.monotonic() + seconds_max
        while True:
            unread, stored = self.ledger.unread(ends), self.stored_offsets()
            if not unread and all(stored.get(index, 0) >= end for index, end in ends.items()):
                return
            assert time.monotonic() < deadline, (
                f"within {seconds_max:.0f} s the group did not read and commit everything: {unread} unread, "
                f"committed {stored} of {ends}; {self.describe()}"
            )
            time.sleep(POLL_S)

    def close(self) -> None:
        for member in self._members:
            member.kill()

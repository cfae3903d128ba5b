"""Groups of Headrace's consumers, each member a process: one leaves, one is killed, the node is killed.

All groups run at the same time.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from tools.prove.client_conformance.server import ServerUnderTest, unique
from tools.prove.groups.scenario import ENDED_S_MAX, SETTLE_S_MAX, GroupScenario, GroupSpec

CLIENT = "headrace"
PROTOCOLS = ("range", "roundrobin", "sticky", "cooperative-sticky", "consumer")
MEMBERS = 3
RECORDS = 300  # records per step


class ConcurrentGroupScenario(GroupScenario):
    """The scenario of one group among others on the same node.

    All groups wait at the barrier `killing` while the node is killed and restarted.
    """

    def __init__(self, server: ServerUnderTest, spec: GroupSpec, killing: threading.Barrier) -> None:
        super().__init__(server.process, spec, 0)
        self._topic = self._group = unique("group")
        self._killing = killing

    def run(self) -> int:
        try:
            return super().run()
        except BaseException:
            self._killing.abort()  # otherwise the other groups would wait for this one
            raise

    def _run_steps(self) -> None:
        for _ in range(self._spec.members):
            self._join()
        self._settle("the first members share the partitions")
        self._produce(RECORDS)
        self._members.pop().leave()
        self._settle("a member has left")
        self._join()
        self._produce(RECORDS)
        self._members.pop(0).kill()
        self._settle("a member was killed and another has joined")
        self._produce(RECORDS)
        self._killing.wait(2 * SETTLE_S_MAX)  # all groups have come this far; the node is killed now
        self._killing.wait(2 * SETTLE_S_MAX)  # the node has restarted
        self._produce(RECORDS)
        self._members.pop(0).kill()
        self._settle("the node and one more member were killed")
        self._wait("every record is read", lambda: all(len(self._read[i]) >= self._ends[i] for i in self._read))


def groups(server: ServerUnderTest) -> str:
    killing = threading.Barrier(len(PROTOCOLS) + 1)
    scenarios = [ConcurrentGroupScenario(server, GroupSpec(CLIENT, name, MEMBERS), killing) for name in PROTOCOLS]
    with ThreadPoolExecutor(len(scenarios)) as threads:
        running = [threads.submit(scenario.run) for scenario in scenarios]
        try:
            killing.wait(3 * SETTLE_S_MAX)
            server.process.kill()
            server.process.start()
            killing.wait(ENDED_S_MAX)
        except threading.BrokenBarrierError:
            pass  # the result of the failed scenario has the reason
        read = sum(
            one.result()
            for one in sorted(running, key=lambda one: isinstance(one.exception(), threading.BrokenBarrierError))
        )
    return f"{len(PROTOCOLS)} protocols, {read} records, {len(PROTOCOLS) * 2} members killed"

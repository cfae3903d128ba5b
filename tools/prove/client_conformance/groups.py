"""Groups of our consumers, each member a process: one leaves, one is killed, the node is killed.

All groups run at the same time.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from tools.prove.client_conformance.server import Stage, unique
from tools.prove.groups.scenario import ENDED_S_MAX, SETTLE_S_MAX, Cast, Story

CLIENT = "headrace"
PROTOCOLS = ("range", "roundrobin", "sticky", "cooperative-sticky", "consumer")
MEMBERS = 3
RECORDS = 300  # records per act


class GroupStory(Story):
    """A group whose records are all read and whose commits never go back, or `play` fails.

    At `killing` the groups wait until the node was killed and restarted.
    """

    def __init__(self, stage: Stage, cast: Cast, killing: threading.Barrier) -> None:
        super().__init__(stage.server, cast, 0)
        self._topic = self._group = unique("group")
        self._killing = killing

    def play(self) -> int:
        try:
            return super().play()
        except BaseException:
            self._killing.abort()  # otherwise the others would wait for it
            raise

    def _act(self) -> None:
        for _ in range(self._cast.members):
            self._join()
        self._settle("the first members share the partitions")
        self._produce(RECORDS)
        self._actors.pop().leave()
        self._settle("one has left")
        self._join()
        self._produce(RECORDS)
        self._actors.pop(0).kill()
        self._settle("one is killed, another has come")
        self._produce(RECORDS)
        self._killing.wait(2 * SETTLE_S_MAX)  # all groups are here; the node is killed now
        self._killing.wait(2 * SETTLE_S_MAX)  # and is back
        self._produce(RECORDS)
        self._actors.pop(0).kill()
        self._settle("the node was killed, and one more member")
        self._wait("every record is read", lambda: all(len(self._read[i]) >= self._ends[i] for i in self._read))


def groups(stage: Stage) -> str:
    killing = threading.Barrier(len(PROTOCOLS) + 1)
    stories = [GroupStory(stage, Cast(CLIENT, name, MEMBERS), killing) for name in PROTOCOLS]
    with ThreadPoolExecutor(len(stories)) as threads:
        playing = [threads.submit(story.play) for story in stories]
        try:
            killing.wait(3 * SETTLE_S_MAX)
            stage.server.kill()
            stage.server.start()
            killing.wait(ENDED_S_MAX)
        except threading.BrokenBarrierError:
            pass  # the result of the failed story says why
        read = sum(
            one.result()
            for one in sorted(playing, key=lambda one: isinstance(one.exception(), threading.BrokenBarrierError))
        )
    return f"{len(PROTOCOLS)} protocols, {read} records, {len(PROTOCOLS) * 2} members killed"

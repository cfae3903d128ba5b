"""Consumer groups in a simulated cluster: their coordinators move with the leaders of `__consumer_offsets`."""

from __future__ import annotations

from testkit.history import Anomaly
from testkit.simulator.cluster.workloads import Workload, until_done
from testkit.simulator.groups.checkers import check_commits
from testkit.simulator.groups.runs import count_commits, finish_groups, group_options, make_groups, read_again
from testkit.simulator.simulation import Outcome

TOPICS = {"t": 2, "u": 1}
SESSIONS_MS, REBALANCES_MS = (1500, 3000), (1000, 2500)
HEALED = "healed"


class GroupWorkload(Workload):
    """Members of classic and consumer groups, which join, leave, die, sleep, and commit and fetch offsets."""

    def options(self) -> dict[str, str]:
        self._timeouts = self.random.choice(SESSIONS_MS), self.random.choice(REBALANCES_MS)
        return group_options(self.random, self._timeouts[0])

    async def begin(self) -> None:
        await self.create_topics(TOPICS, {})
        self._groups, self._members = make_groups(
            self.world, self.random, TOPICS, self._timeouts, lambda number: self.child()
        )
        self._tasks = self.start(self._members)

    async def finish(self) -> None:
        await finish_groups(self.world, self._groups, self._members)
        self._healed = len(self.world.history.events)
        self.world.history.note(HEALED)
        self.world.stopping = True
        await until_done(self._tasks, "members")

    async def read_everything(self) -> None:
        for group in self._groups:
            await read_again(self.world, self.child(), group)

    def verdict(self) -> list[Anomaly]:
        return check_commits(self.world.history, self._healed)

    def count(self, outcome: Outcome) -> None:
        count_commits(self.world.history, outcome)

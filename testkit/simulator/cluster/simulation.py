"""Runs one seed of a cluster: three machines, one kind of workload, and faults of nodes and links.

Everything acknowledged was written with acks=all and min.insync.replicas=2, and no machine loses its disk: nothing of it may be lost,
doubled or changed, and after the last fault every client must finish.
"""

from __future__ import annotations

import asyncio
from random import Random

from testkit.history import Anomaly, History
from testkit.simulator.clients import World
from testkit.simulator.cluster.faults import CALM_S_MAX, ClusterFaults
from testkit.simulator.cluster.group_workload import GroupWorkload
from testkit.simulator.cluster.invariants import Invariants
from testkit.simulator.cluster.machines import NODES, Machines
from testkit.simulator.cluster.transaction_workload import TransactionWorkload
from testkit.simulator.cluster.workloads import ProducerWorkload, Workload
from testkit.simulator.loop import SimulatedLoop
from testkit.simulator.machine import SimulatedClock
from testkit.simulator.network import Network
from testkit.simulator.simulation import Outcome, Trace, stop_all

WORKLOADS: tuple[type[Workload], ...] = (
    ProducerWorkload, ProducerWorkload, ProducerWorkload, GroupWorkload, TransactionWorkload,
)  # fmt: skip
DURABLE_SHARE = 0.3  # share of the seeds that sync every record before it is acknowledged
CHECK_S = 0.05
STEPS_MAX = 1_500_000


class ClusterSimulation:
    """A cluster under load; `run_seed` runs it like the simulations of a single machine."""

    flag = "--cluster"

    def __init__(self, seed: int, trace: Trace) -> None:
        self._seed = seed
        random = self._random("run")
        self.loop = SimulatedLoop(self._random("loop"), STEPS_MAX)  # type: ignore[abstract]
        self.loop.look_s = random.choice((0.0, 0.0, 1e-6))
        self.loop.slow_share = random.choice((0.02, 0.02, 0.2))
        self._is_durable = random.random() < DURABLE_SHARE
        trace.now = lambda: self.loop.now
        self.history = History(lambda: self.loop.now, lambda event: trace(f"{event.kind} {event.process} {event}"))
        self.network = Network(self.loop, self._random("network"), trace)
        self.workload = random.choice(WORKLOADS)(self._random("workload"))
        options = self._options(random) | self.workload.options()
        self._machines = Machines(
            NODES, self.loop, self.network, self._random("machines"), self.history, options, trace
        )
        self.workload.world = World(self.loop, SimulatedClock(self.loop), self.history, self._machines.bootstrap)
        self.invariants = Invariants(self._machines)
        self._faults = ClusterFaults(
            self.loop,
            self.network,
            self._machines,
            self._random("faults"),
            self.invariants.check,
            is_durable=self._is_durable,
        )

    def _options(self, random: Random) -> dict[str, str]:
        flushed = {"log.flush.interval.messages": "1"} if self._is_durable else {}
        return flushed | {
            "default.replication.factor": str(NODES),
            "min.insync.replicas": "2",
            "offsets.topic.replication.factor": str(NODES),
            "offsets.topic.num.partitions": "2",
            "transaction.state.log.replication.factor": str(NODES),
            "transaction.state.log.min.isr": "2",
            "transaction.state.log.num.partitions": "2",
            "replica.high.watermark.checkpoint.interval.ms": str(random.choice((200, 5000))),
            "replica.lag.time.max.ms": str(random.choice((2000, 2000, 30_000))),
            "leader.imbalance.check.interval.seconds": str(random.choice((2, 10, 300))),
            "metadata.log.max.record.bytes.between.snapshots": str(random.choice((400, 2_000, 20_971_520))),
            "metadata.max.retention.bytes": str(random.choice((500, 5_000, 104_857_600))),
        }

    def _random(self, what: str) -> Random:
        return Random(f"{self._seed} cluster {what}")

    @property
    def faults(self) -> ClusterFaults:
        return self._faults

    @property
    def failures(self) -> list[str]:
        return self._machines.failures

    async def run(self) -> None:
        supervisors = self._machines.supervise()
        await self._machines.until_up()
        checking = self.loop.create_task(self._check_always())
        working = self.loop.create_task(self._run_clients())
        await asyncio.wait([checking, working], return_when=asyncio.FIRST_COMPLETED)
        if checking.done():
            checking.result()  # the first contradiction ends the run
        working.result()
        await stop_all(self._machines.all, supervisors, checking)

    async def _run_clients(self) -> None:
        await self.workload.begin()
        await self._faults.run()
        await self._faults.heal()
        await asyncio.sleep(self._random("calm").random() * CALM_S_MAX)
        await self.workload.finish()
        await self._machines.until_equal_metadata()
        await self.workload.read_everything()
        await self._machines.until_up()
        self.invariants.check_contents()

    async def _check_always(self) -> None:
        while True:
            self.invariants.check()
            await asyncio.sleep(CHECK_S)

    def verdict(self) -> list[Anomaly]:
        return self.workload.verdict()

    def count(self, outcome: Outcome) -> None:
        self.workload.count(outcome)

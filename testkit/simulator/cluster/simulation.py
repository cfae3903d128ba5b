"""Runs one seed of a cluster: three machines, producers and readers of replicated topics, faults of nodes and links.

Everything acknowledged was written with acks=all and min.insync.replicas=2, and no machine loses its disk: nothing of it may be lost,
doubled or changed, and after the last fault every client must finish.
"""

from __future__ import annotations

import asyncio
from random import Random

from headrace.base.errors import RETRIABLE, KafkaError
from headrace.base.ids import TopicPartition
from testkit.history import Anomaly, FinalRead, History, Kind, check
from testkit.simulator.admin import create_topic
from testkit.simulator.checkers import FinalReader, check_responses
from testkit.simulator.clients import BACKOFF_S, LOST, Client, World
from testkit.simulator.cluster.faults import CALM_S_MAX, ClusterFaults
from testkit.simulator.cluster.invariants import Invariants
from testkit.simulator.cluster.machines import Machines
from testkit.simulator.loop import SimulatedLoop
from testkit.simulator.machine import SimulatedClock
from testkit.simulator.network import Network
from testkit.simulator.producers import IdempotentProducer, PlainProducer
from testkit.simulator.readers import FollowingReader
from testkit.simulator.simulation import Outcome, Trace

TOPIC = "t"
NODES = 3
PARTITIONS_MAX = 3
BATCHES = (10, 60)
UNLIMITED_BATCHES, UNLIMITED_PACE_S = 1_000_000, 0.3  # for producers that send until the last fault is over
CHECK_S = 0.05
DONE_S_MAX = 180.0  # simulated seconds after the last fault
STEPS_MAX = 3_000_000
ALL_ACKS = -1


class PartitionReader(FollowingReader):
    """Follows each partition at its own leader."""

    sends_leader_epoch = True

    async def run(self) -> None:
        await self.find_topic(self.topic)
        positions = dict.fromkeys(range(self.partitions), 0)
        while not self.world.stopping:
            for index in positions:
                one = {index: positions[index]}
                try:
                    connection = await self.leader(TopicPartition(self.topic, index))
                    await self._poll(connection, one)
                except LOST:
                    await self.pause(BACKOFF_S)
                except KafkaError as error:
                    assert error.code in RETRIABLE, error
                    await self.pause(BACKOFF_S)
                positions |= one
        await self.close()


class ClusterSimulation:
    """A cluster under load; `run_seed` runs it like the simulations of a single machine."""

    flag = "--cluster"

    def __init__(self, seed: int, trace: Trace) -> None:
        self._seed = seed
        self._trace = trace
        random = self._random("run")
        self.loop = SimulatedLoop(self._random("loop"), STEPS_MAX)  # type: ignore[abstract]
        self.loop.look_s = random.choice((0.0, 0.0, 1e-6))
        self.loop.slow_share = random.choice((0.02, 0.02, 0.2))
        trace.now = lambda: self.loop.now
        self.history = History(lambda: self.loop.now, lambda event: trace(f"{event.kind} {event.process} {event}"))
        self.network = Network(self.loop, self._random("network"), trace)
        self._machines = Machines(
            NODES, self.loop, self.network, self._random("machines"), self.history, self._options(random), trace
        )
        self._world = World(self.loop, SimulatedClock(self.loop), self.history, self._machines.bootstrap)
        self._faults = ClusterFaults(self.loop, self.network, self._machines, self._random("faults"))
        self.invariants = Invariants(self._machines)
        self._final_read = FinalRead({})

    def _options(self, random: Random) -> dict[str, str]:
        return {
            "default.replication.factor": str(NODES),
            "min.insync.replicas": "2",
            "offsets.topic.replication.factor": str(NODES),
            "offsets.topic.num.partitions": "2",
            "transaction.state.log.replication.factor": str(NODES),
            "transaction.state.log.min.isr": "2",
            "transaction.state.log.num.partitions": "2",
            "replica.high.watermark.checkpoint.interval.ms": str(random.choice((200, 5000))),
            "replica.lag.time.max.ms": str(random.choice((2000, 30_000))),
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
        await self._run_clients()
        await self._machines.until_up()
        self.invariants.check_replicas()
        for machine in self._machines.all:
            await machine.stop()
        for task in (checking, *supervisors):
            task.cancel()
        await asyncio.wait([checking, *supervisors])
        if not checking.cancelled():
            checking.result()

    async def _check_always(self) -> None:
        while True:
            self.invariants.check()
            await asyncio.sleep(CHECK_S)

    async def _run_clients(self) -> None:
        random = self._random("workload")
        partitions = random.randint(1, PARTITIONS_MAX)
        first = Client("first", self._world, self._random("first"))
        options = {"internal.segment.bytes": str(random.choice((16_000, 1_000_000)))}
        await create_topic(first, TOPIC, partitions, options, NODES)
        await first.close()
        producers = self._producers(random, partitions)
        producing = [self.loop.create_task(producer.run()) for producer in producers]
        readers = [
            PartitionReader(f"following-{number}", self._world, Random(random.getrandbits(64)), TOPIC, partitions)
            for number in range(random.randint(1, 2))
        ]
        reading = [self.loop.create_task(reader.run()) for reader in readers]
        await self._faults.run()
        await self._faults.heal()
        await asyncio.sleep(random.random() * CALM_S_MAX)
        for producer in producers:
            producer.finish()
        await self._finish(producing, "producers")
        self._world.stopping = True
        await self._finish(reading, "readers")
        await self._machines.until_up()
        final = FinalReader("final", self._world, self._random("final"), TOPIC, partitions)
        final.sends_leader_epoch = True
        self._final_read = await final.read_everything()

    def _producers(self, random: Random, partitions: int) -> list[IdempotentProducer | PlainProducer]:
        def child() -> Random:
            return Random(random.getrandbits(64))

        producers: list[IdempotentProducer | PlainProducer] = [
            IdempotentProducer(
                f"idempotent-{number}",
                self._world,
                child(),
                TOPIC,
                random.randint(*BATCHES),
                random.randrange(partitions),
                random.choice((1, 5)),
            )
            for number in range(random.randint(1, 3))
        ]
        # To partition 0 only: a request of this producer goes to one leader.
        plain = PlainProducer("plain", self._world, child(), TOPIC, UNLIMITED_BATCHES, ALL_ACKS, 1)
        plain.pace_s = UNLIMITED_PACE_S
        return [*producers, plain]

    async def _finish(self, tasks: list[asyncio.Task[None]], what: str) -> None:
        _, pending = await asyncio.wait(tasks, timeout=DONE_S_MAX)
        assert not pending, f"{len(pending)} {what} made no end within {DONE_S_MAX:.0f} s after the last fault"
        for task in tasks:
            task.result()

    def verdict(self) -> list[Anomaly]:
        internal = {place: records for place, records in self._final_read.records.items() if place[0] == TOPIC}
        final = FinalRead(internal)
        return check(self.history, final) + check_responses(self.history, final, self._world)

    def count(self, outcome: Outcome) -> None:
        for event in self.history.events:
            if event.kind is Kind.OK and event.operation == "send":
                outcome.acknowledged += len(self.history.events[event.call].value["values"])
            elif event.kind is Kind.OK and event.operation == "poll":
                outcome.read += len(event.value["records"])

"""Workloads of a simulated cluster: producers and readers of a replicated topic, and topics that are created and deleted.

A workload starts its clients, ends them after the last fault, reads everything and judges the history.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from random import Random
from typing import Any

from headrace.base.errors import RETRIABLE, KafkaError
from headrace.base.ids import TopicPartition
from testkit.history import Anomaly, FinalRead, Kind, check
from testkit.simulator.admin import Operator
from testkit.simulator.checkers import FinalReader, check_responses
from testkit.simulator.clients import BACKOFF_S, LOST, Client, World
from testkit.simulator.cluster.machines import NODES
from testkit.simulator.groups.runs import create_surely
from testkit.simulator.producers import IdempotentProducer, PlainProducer
from testkit.simulator.readers import FollowingReader
from testkit.simulator.simulation import Outcome

TOPIC = "t"
PARTITIONS_MAX = 3
BATCHES = (10, 60)
UNLIMITED, UNLIMITED_PACE_S = 1_000_000, 0.3  # batches and pace of a producer that sends until the last fault is over
CHURN_TOPICS = 3
OPERATOR_SHARE = 0.6  # share of the seeds in which topics are created and deleted
DONE_S_MAX = 180.0  # simulated seconds after the last fault
ALL_ACKS = -1


class Workload(ABC):
    """The clients of one seed. They are drawn before the cluster exists, because they determine some options of its nodes."""

    world: World  # set before `begin`

    def __init__(self, random: Random) -> None:
        self.random = random

    def child(self) -> Random:
        return Random(self.random.getrandbits(64))

    def options(self) -> dict[str, str]:
        """Return options of the nodes that this workload needs."""
        return {}

    @abstractmethod
    async def begin(self) -> None:
        """Create the topics and start the clients."""

    @abstractmethod
    async def finish(self) -> None:
        """End all clients after the last fault; raise AssertionError if one does not end in time."""

    @abstractmethod
    async def read_everything(self) -> None:
        """Read the final state as new clients."""

    @abstractmethod
    def verdict(self) -> list[Anomaly]: ...

    @abstractmethod
    def count(self, outcome: Outcome) -> None: ...

    async def create_topics(self, topics: dict[str, int], options: dict[str, str]) -> None:
        first = Client("first", self.world, self.child())
        for topic, partitions in topics.items():
            await create_surely(first, topic, partitions, options, NODES)
        await first.close()

    def start(self, clients: list[Any]) -> list[asyncio.Task[None]]:
        return [self.world.loop.create_task(client.run()) for client in clients]


async def until_done(tasks: list[asyncio.Task[None]], what: str) -> None:
    _, pending = await asyncio.wait(tasks, timeout=DONE_S_MAX)
    assert not pending, f"{len(pending)} {what} made no end within {DONE_S_MAX:.0f} s after the last fault"
    for task in tasks:
        task.result()


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


class ProducerWorkload(Workload):
    """Idempotent producers and one that never retries, readers, and in most seeds an operator."""

    async def begin(self) -> None:
        world = self.world
        self._partitions = self.random.randint(1, PARTITIONS_MAX)
        segment_bytes = str(self.random.choice((16_000, 1_000_000)))
        await self.create_topics({TOPIC: self._partitions}, {"internal.segment.bytes": segment_bytes})
        self._producers = self._make_producers()
        self._producing = self.start(self._producers)
        others: list[PartitionReader | Operator] = [
            PartitionReader(f"following-{number}", world, self.child(), TOPIC, self._partitions)
            for number in range(self.random.randint(1, 2))
        ]
        if self.random.random() < OPERATOR_SHARE:
            others.append(Operator("operator", world, self.child(), CHURN_TOPICS, NODES))
        self._others = self.start(others)

    def _make_producers(self) -> list[IdempotentProducer | PlainProducer]:
        producers: list[IdempotentProducer | PlainProducer] = [
            IdempotentProducer(
                f"idempotent-{number}",
                self.world,
                self.child(),
                TOPIC,
                self.random.randint(*BATCHES),
                self.random.randrange(self._partitions),
                self.random.choice((1, 5)),
            )
            for number in range(self.random.randint(1, 3))
        ]
        # To partition 0 only: a request of this producer goes to one leader.
        plain = PlainProducer("plain", self.world, self.child(), TOPIC, UNLIMITED, ALL_ACKS, 1)
        plain.pace_s = UNLIMITED_PACE_S
        return [*producers, plain]

    async def finish(self) -> None:
        for producer in self._producers:
            producer.finish()
        await until_done(self._producing, "producers")
        self.world.stopping = True
        await until_done(self._others, "readers")

    async def read_everything(self) -> None:
        reader = FinalReader("final", self.world, self.child(), TOPIC, self._partitions)
        reader.sends_leader_epoch = True
        self._final_read: FinalRead = await reader.read_everything()

    def verdict(self) -> list[Anomaly]:
        history = self.world.history
        return check(history, self._final_read) + check_responses(history, self._final_read, self.world)

    def count(self, outcome: Outcome) -> None:
        events = self.world.history.events
        for event in events:
            if event.kind is Kind.OK and event.operation == "send":
                outcome.acknowledged += len(events[event.call].value["values"])
            elif event.kind is Kind.OK and event.operation == "poll":
                outcome.read += len(event.value["records"])

"""Simulates transactions.

Producers commit, abort, sleep, die and share transactional ids; readers use both isolation levels; coordinators move.
"""

from __future__ import annotations

import asyncio
from random import Random

from headrace.coordinators.partitioning import GROUPS_TOPIC, TRANSACTIONS_TOPIC
from headrace.node.broker_role import BrokerRole
from testkit.history import Anomaly
from testkit.simulator.clients import Client
from testkit.simulator.groups.offsets import Group
from testkit.simulator.groups.runs import create_surely
from testkit.simulator.groups.simulation import STORM_SHARE, GroupFaults, OnElected
from testkit.simulator.machine import DATA, SECOND_DATA
from testkit.simulator.mover import Mover
from testkit.simulator.readers import READ_COMMITTED, READ_UNCOMMITTED
from testkit.simulator.simulation import COMPACTED, Outcome, Simulation, Trace
from testkit.simulator.transactions.checkers import check_transactions
from testkit.simulator.transactions.clients import Identity
from testkit.simulator.transactions.eager_producers import EagerProducer
from testkit.simulator.transactions.producers import AddingProducer, EpochProducer, TransactionalProducer
from testkit.simulator.transactions.readers import (
    FinalTransactionReader,
    FinalTransactions,
    OffsetsReader,
    Place,
    TransactionReader,
)
from testkit.simulator.transactions.runs import (
    count_transactions,
    draw_identities,
    read_final_offsets,
    settle_transactions,
)

TOPIC = "t"
PARTITIONS_MAX = 3
STATE_PARTITIONS_MAX = 2
IDENTITIES_MAX = 3
TRANSACTIONS_MAX = 14
FLUSHED_SHARE = 0.2  # share of the seeds without power losses that flush anyway
EPOCH_SHARE = 0.7
SHARED_ID_SHARE = 0.4
EAGER_SHARE = 0.5
EAGER_TRANSACTIONS_MAX = 40
EXPIRATIONS_MS = (4_000, 604_800_000, 604_800_000)


class TransactionFaults(GroupFaults):
    def election_callbacks(self, broker: BrokerRole) -> dict[str, OnElected]:
        return {
            TOPIC: lambda partition: None,
            GROUPS_TOPIC: broker.groups.elected,
            TRANSACTIONS_TOPIC: broker.transactions.elected,
        }


class TransactionSimulation(Simulation):
    faults_type = TransactionFaults
    flag = "--transactions"

    def __init__(self, seed: int, trace: Trace) -> None:
        random = self._transaction_random = Random(f"{seed} transactions")
        self._offsets_partitions = random.randint(1, STATE_PARTITIONS_MAX)
        self._state_partitions = random.randint(1, STATE_PARTITIONS_MAX)
        self._partitions = random.randint(1, PARTITIONS_MAX)
        self._is_stormy = random.random() < STORM_SHARE
        # The first draw of a seed's faults decides whether the power may fail.
        self._is_flushed = Random(f"{seed} faults").random() < 0.5 or random.random() < FLUSHED_SHARE
        self._groups: list[Group] = []
        self.final = FinalTransactions()
        self.final_offsets: dict[tuple[str, Place], int] = {}
        super().__init__(seed, trace)
        assert self._is_flushed or not self.faults.may_lose_power

    def more_options(self) -> dict[str, str]:
        random = self._transaction_random
        self._expiration_ms = random.choice(EXPIRATIONS_MS)
        options = {
            "offsets.topic.num.partitions": str(self._offsets_partitions),
            "transaction.state.log.num.partitions": str(self._state_partitions),
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": str(random.choice((50, 500, 2_000))),
            "transactional.id.expiration.ms": str(self._expiration_ms),
            "transaction.remove.expired.transaction.cleanup.interval.ms": str(random.choice((500, 3_600_000))),
            "add.partitions.to.txn.retry.backoff.max.ms": str(random.choice((0, 100))),
            "log.cleaner.min.cleanable.ratio": "0.01",
        }
        if self._is_flushed:
            options["log.flush.interval.messages"] = "1"
        return options

    async def run_clients(self) -> None:
        producers, readers = await self._make()
        self.check_always()
        producing = [self.loop.create_task(producer.run()) for producer in producers]
        others = [self.loop.create_task(reader.run()) for reader in readers]
        if self.machine.two_dirs:
            mover = Mover("mover", self.world, self._random("mover"), TOPIC, self._partitions, [DATA, SECOND_DATA])
            others.append(self.loop.create_task(mover.run()))
        assert isinstance(self.faults, TransactionFaults)
        storm = self.loop.create_task(self.faults.storm(self._random("storm"), self._is_stormy))
        await self.faults.run()
        storm.cancel()
        await asyncio.wait([storm])
        await self.faults.heal()
        await self.machine.until_up()
        await self._finish(producing, "producers")
        await settle_transactions(self.world, self._random("settler"), TOPIC, self._partitions)
        self.world.stopping = True
        await self._finish(others, "readers")
        await self.machine.until_up()
        reader = FinalTransactionReader(
            "final", self.world, self._random("final"), TOPIC, self._partitions, READ_COMMITTED
        )
        self.final = await reader.read_everything()
        for group in self._groups:
            random = self._random("final offsets")
            self.final_offsets |= await read_final_offsets(self.world, random, group)

    async def _make(self) -> tuple[list[TransactionalProducer], list[TransactionReader | OffsetsReader]]:
        random = self._random("clients")
        await self._create_topics(random)

        def child() -> Random:
            return Random(random.getrandbits(64))

        producers: list[TransactionalProducer] = []
        topics = {TOPIC: self._partitions}
        for identity, group, names in draw_identities(random, topics, IDENTITIES_MAX, SHARED_ID_SHARE):
            self._groups.append(group)
            for name in names:
                kind = EpochProducer if random.random() < EPOCH_SHARE else AddingProducer
                count = random.randint(3, TRANSACTIONS_MAX)
                producers.append(kind(name, self.world, child(), identity, TOPIC, self._partitions, count))
        if random.random() < EAGER_SHARE:
            producers.append(self._eager_producer(child()))
        readers: list[TransactionReader | OffsetsReader] = [
            TransactionReader(name, self.world, child(), TOPIC, self._partitions, isolation)
            for name, isolation in (
                ("committed-0", READ_COMMITTED),
                ("committed-1", READ_COMMITTED),
                ("uncommitted", READ_UNCOMMITTED),
            )
        ]
        readers += [OffsetsReader(f"offsets-{group.name}", self.world, child(), group) for group in self._groups]
        return producers, readers

    def _eager_producer(self, random: Random) -> EagerProducer:
        count = random.randint(EAGER_TRANSACTIONS_MAX // 4, EAGER_TRANSACTIONS_MAX)
        identity = Identity("id-eager", "g-eager")
        eager = EagerProducer("eager", self.world, random, identity, TOPIC, self._partitions, count)
        eager.may_expire = self._expiration_ms == min(EXPIRATIONS_MS)
        return eager

    async def _create_topics(self, random: Random) -> None:
        options = {
            "internal.segment.bytes": str(random.choice((4_000, 20_000, 1_000_000))),
            "index.interval.bytes": str(random.choice((0, 300, 4096))),
        }
        if self._is_compacted:
            options |= {**COMPACTED, "delete.retention.ms": str(random.choice((0, 500, 86_400_000)))}
        state = {"cleanup.policy": "compact", "internal.segment.bytes": str(random.choice((1_000, 5_000, 1_000_000)))}
        first = Client("first", self.world, self._random("first"))
        topics = {
            TOPIC: self._partitions,
            GROUPS_TOPIC: self._offsets_partitions,
            TRANSACTIONS_TOPIC: self._state_partitions,
        }
        for topic, partitions in topics.items():
            await create_surely(first, topic, partitions, options if topic == TOPIC else state)
        await first.close()
        if self._is_flushed:
            self.machine.flushed = [(topic, index) for topic, count in topics.items() for index in range(count)]

    def verdict(self) -> list[Anomaly]:
        return check_transactions(self.history, self.final, self.final_offsets, is_compacted=self._is_compacted)

    def count(self, outcome: Outcome) -> None:
        count_transactions(self.history, outcome)

"""Transactions in a simulated cluster: their coordinators move with the leaders of `__transaction_state`."""

from __future__ import annotations

from headrace.base.errors import RETRIABLE, KafkaError
from headrace.base.ids import TopicPartition
from testkit.history import Anomaly
from testkit.simulator.clients import BACKOFF_S, LOST
from testkit.simulator.cluster.workloads import PARTITIONS_MAX, TOPIC, UNLIMITED, Workload, until_done
from testkit.simulator.groups.offsets import Group
from testkit.simulator.readers import PACE_S, READ_COMMITTED, READ_UNCOMMITTED
from testkit.simulator.simulation import Outcome
from testkit.simulator.transactions.checkers import check_transactions
from testkit.simulator.transactions.producers import EpochProducer
from testkit.simulator.transactions.readers import (
    FinalTransactionReader,
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

IDENTITIES_MAX = 2
SHARED_ID_SHARE = 0.3
REST_S = 0.8


class LastingProducer(EpochProducer):
    """Begins transactions until the last fault is over.

    It uses transaction version 2: before that, a request that a paused broker handles late could reach the next transaction.
    """

    async def rest(self) -> None:
        await self.pause(REST_S)


class PartitionTransactionReader(TransactionReader):
    """Follows each partition at its own leader."""

    sends_leader_epoch = True

    async def run(self) -> None:
        await self.find_topic(self.topic)
        positions = dict.fromkeys(range(self.partitions), 0)
        while not self.world.stopping:
            for index in positions:
                one = {index: positions[index]}
                try:
                    if self.random.random() < 0.2:
                        await self._ask(index)
                    await self._poll(await self.leader(TopicPartition(self.topic, index)), one)
                except LOST:
                    await self.pause(BACKOFF_S)
                except KafkaError as error:
                    assert error.code in RETRIABLE, error
                    await self.refresh()
                    await self.pause(BACKOFF_S)
                positions |= one
            await self.pause(PACE_S)
        await self.close()


class TransactionWorkload(Workload):
    """Transactional producers that commit, abort, sleep, die and share ids, and readers with both isolation levels."""

    def options(self) -> dict[str, str]:
        return {
            "transaction.abort.timed.out.transaction.cleanup.interval.ms": str(self.random.choice((50, 500, 2_000))),
            "add.partitions.to.txn.retry.backoff.max.ms": str(self.random.choice((0, 100))),
        }

    async def begin(self) -> None:
        world = self.world
        self._partitions = self.random.randint(1, PARTITIONS_MAX)
        await self.create_topics({TOPIC: self._partitions}, {})
        self._groups: list[Group] = []
        self._producers: list[LastingProducer] = []
        topics = {TOPIC: self._partitions}
        for identity, group, names in draw_identities(self.random, topics, IDENTITIES_MAX, SHARED_ID_SHARE):
            self._groups.append(group)
            self._producers += [
                LastingProducer(name, world, self.child(), identity, TOPIC, self._partitions, UNLIMITED)
                for name in names
            ]
        self._producing = self.start(self._producers)
        self._others = self.start(
            [
                PartitionTransactionReader("committed", world, self.child(), TOPIC, self._partitions, READ_COMMITTED),
                PartitionTransactionReader("all", world, self.child(), TOPIC, self._partitions, READ_UNCOMMITTED),
                *(OffsetsReader(f"offsets-{group.name}", world, self.child(), group) for group in self._groups),
            ]
        )

    async def finish(self) -> None:
        for producer in self._producers:
            producer.finish()
        await until_done(self._producing, "producers")
        await settle_transactions(self.world, self.child(), TOPIC, self._partitions)
        self.world.stopping = True
        await until_done(self._others, "readers")

    async def read_everything(self) -> None:
        reader = FinalTransactionReader("final", self.world, self.child(), TOPIC, self._partitions, READ_COMMITTED)
        reader.sends_leader_epoch = True
        self._final = await reader.read_everything()
        self._offsets: dict[tuple[str, Place], int] = {}
        for group in self._groups:
            self._offsets |= await read_final_offsets(self.world, self.child(), group)

    def verdict(self) -> list[Anomaly]:
        history = self.world.history
        return check_transactions(history, self._final, self._offsets, is_compacted=False, may_be_stale=True)

    def count(self, outcome: Outcome) -> None:
        count_transactions(self.world.history, outcome)

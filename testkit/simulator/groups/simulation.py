"""Simulates group coordinators: members join, leave, die and sleep, the node crashes, coordinators are unloaded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from msgspec.structs import replace

from headrace.base.ids import NO_NODE
from headrace.coordinators.group.shard import GroupShard
from headrace.coordinators.partitioning import GROUPS_TOPIC
from headrace.metadata.image import Partition as PartitionState
from headrace.node.broker_role import BrokerRole
from headrace.replication.partition import Partition
from testkit.history import Anomaly
from testkit.simulator.clients import Client
from testkit.simulator.faults import CHECK_S, Faults
from testkit.simulator.groups.checkers import check_groups
from testkit.simulator.groups.offsets import Group
from testkit.simulator.groups.runs import (
    Member,
    count_commits,
    create_surely,
    finish_groups,
    group_options,
    make_groups,
    read_again,
)
from testkit.simulator.machine import DATA, SECOND_DATA
from testkit.simulator.mover import Mover
from testkit.simulator.simulation import Outcome, Simulation, Trace

FLUSHED_SHARE = 0.4
TOPICS = ("t", "u")
PARTITIONS_MAX = 4
OFFSETS_PARTITIONS_MAX = 3
UNLOADED_S_MAX = 0.3
STORM_SHARE, STORM_S = 0.3, 0.4
GROUP_FAULTS = ("unload", "unload", "unload", "unload_at_once", "unload_at_once", "lead_again")

OnElected = Callable[[Partition], None]


class GroupFaults(Faults):
    more = GROUP_FAULTS

    def election_callbacks(self, broker: BrokerRole) -> dict[str, OnElected]:
        """Return the topics whose partitions may change leaders, and the callback for each change."""
        return {GROUPS_TOPIC: broker.groups.elected}

    def _led(self, random: Random) -> tuple[OnElected, Partition] | None:
        node = self._machine.node
        if node is None or node.broker is None:
            return None
        election_callbacks = self.election_callbacks(node.broker)
        found = [one for one in node.broker.replicas.all() if one.name.topic in election_callbacks and one.is_leader]
        if not found:
            return None
        partition = random.choice(found)
        return election_callbacks[partition.name.topic], partition

    async def check_always(self) -> None:
        async def look() -> None:
            while True:
                node = self._machine.node
                if node is not None and node.broker is not None:
                    for shard in node.broker.groups.loaded():
                        _check_owners(shard)
                await asyncio.sleep(CHECK_S)

        await asyncio.gather(super().check_always(), look())

    async def _unload(self) -> None:
        await self.unload(self._random)

    async def unload(self, random: Random) -> None:
        """Take the leadership of a random partition away for a while."""
        led = self._led(random)
        if led is not None:
            await self._machine.inside(_lose_and_regain(*led, random.random() * UNLOADED_S_MAX))

    async def _unload_at_once(self) -> None:
        """Take leadership away and return it at once, up to four times, so that some changes interrupt loading."""
        for _ in range(self._random.randint(1, 4)):
            led = self._led(self._random)
            if led is not None:
                await self._machine.inside(_lose_and_regain(*led, None))
            await asyncio.sleep(self._random.random() * 0.02)

    async def storm(self, random: Random, is_stormy: bool) -> None:
        """In stormy seeds, unload coordinators all the time, so that an unload follows every step of a rebalance."""
        while is_stormy:
            await asyncio.sleep(random.random() * STORM_S)
            await self.unload(random)

    async def _lead_again(self) -> None:
        """Let the coordinator detect lost leadership from the partition, before it gets any metadata."""
        led = self._led(self._random)
        if led is not None:
            await self._machine.inside(
                _lose_and_regain(*led, self._random.random() * UNLOADED_S_MAX, election_callbacks=False)
            )


def _check_owners(shard: GroupShard) -> None:
    """Assert that a partition that is assigned to a member, or not confirmed as revoked, has no other owner."""
    for group in shard.consumers.groups.values():
        owned = [
            ((topic, partition), member.member_id)
            for member in group.members.values()
            for owns in (member.assigned, member.revoking)
            for topic, partitions in owns.items()
            for partition in partitions
        ]
        owners = dict(owned)
        assert len(owned) == len(owners), f"{group.group_id}: partitions of two members in {sorted(owned)}"
        assert owners == dict(group.owners.items()), f"{group.group_id}: {owners}, its table has {group.owners.items()}"


async def _lose_and_regain(
    elected: OnElected,
    partition: Partition,
    seconds: float | None,
    election_callbacks: bool = True,
) -> None:
    led = PartitionState(
        partition.replicas, partition.isr, partition.leader, partition.leader_epoch, partition.partition_epoch
    )
    partition.follow(replace(led, leader=NO_NODE))
    if election_callbacks:
        elected(partition)
    if seconds is not None:
        await asyncio.sleep(seconds)
    partition.lead(led, 0)
    elected(partition)


class GroupSimulation(Simulation):
    faults_type = GroupFaults
    flag = "--groups"

    def __init__(self, seed: int, trace: Trace) -> None:
        random = Random(f"{seed} groups")
        self._is_flushed = random.random() < FLUSHED_SHARE
        self._timeouts = random.choice((1000, 1500, 3000)), random.choice((1000, 2500))
        self._offsets_partitions = random.choice((1, 1, 2, OFFSETS_PARTITIONS_MAX))
        self._segment_bytes = random.choice((None, 2_000, 10_000))
        self._is_stormy = random.random() < STORM_SHARE
        self._group_random = random
        super().__init__(seed, trace)

    def more_options(self) -> dict[str, str]:
        options = group_options(self._group_random, self._timeouts[0])
        options["offsets.topic.num.partitions"] = str(self._offsets_partitions)
        options["log.cleaner.min.cleanable.ratio"] = "0.01"
        if self._is_flushed:
            options["log.flush.interval.messages"] = "1"
        return options

    async def run_clients(self) -> None:
        groups, members = await self._make()
        self.check_always()
        active = [self.loop.create_task(member.run()) for member in members]
        if self.machine.two_dirs:
            mover = Mover(
                "mover", self.world, self._random("mover"), GROUPS_TOPIC, self._offsets_partitions, [DATA, SECOND_DATA]
            )
            active.append(self.loop.create_task(mover.run()))
        assert isinstance(self.faults, GroupFaults)
        storm = self.loop.create_task(self.faults.storm(self._random("storm"), self._is_stormy))
        await self.faults.run()
        storm.cancel()
        await asyncio.wait([storm])
        await self.faults.heal()
        await self.machine.until_up()
        await finish_groups(self.world, groups, members)
        for group in groups:
            await read_again(self.world, self._random("reader"), group)
        self.world.stopping = True
        await self._finish(active, "members")

    async def _make(self) -> tuple[list[Group], list[Member]]:
        random = self._random("members")
        topics = {topic: random.randint(1, PARTITIONS_MAX) for topic in TOPICS}
        first = Client("first", self.world, self._random("first"))
        for topic, partitions in topics.items():
            await create_surely(first, topic, partitions, {})
        if self._segment_bytes is not None:
            # Small segments are compacted while the coordinator uses them. Otherwise it creates its topic itself.
            options = {"cleanup.policy": "compact", "internal.segment.bytes": str(self._segment_bytes)}
            await create_surely(first, GROUPS_TOPIC, self._offsets_partitions, options)
        await first.close()
        groups, members = make_groups(
            self.world, random, topics, self._timeouts, lambda number: self._random(f"mixed {number}")
        )
        if self._is_flushed:
            self.machine.flushed = [(GROUPS_TOPIC, index) for index in range(OFFSETS_PARTITIONS_MAX)]
        return groups, members

    def verdict(self) -> list[Anomaly]:
        return check_groups(self.history, self._is_flushed)

    def count(self, outcome: Outcome) -> None:
        count_commits(self.history, outcome)

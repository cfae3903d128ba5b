"""Simulates group coordinators: members join, leave, die and sleep, the node crashes, coordinators are unloaded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from msgspec.structs import replace

from headrace.base.errors import KafkaError
from headrace.base.ids import NO_NODE, TopicPartition
from headrace.coordinators.group.shard import GroupShard
from headrace.coordinators.partitioning import GROUPS_TOPIC
from headrace.metadata.image import Partition as PartitionState
from headrace.node.broker_role import BrokerRole
from headrace.replication.partition import Partition
from testkit.history import Anomaly, Kind
from testkit.simulator.admin import create_topic
from testkit.simulator.clients import LOST, REQUEST_TIMEOUT_S, Client
from testkit.simulator.faults import CHECK_S, Faults
from testkit.simulator.groups.checkers import check_groups
from testkit.simulator.groups.classic_members import INITIAL_DELAY_S_MAX, ClassicMember
from testkit.simulator.groups.consumer_members import ConsumerMember
from testkit.simulator.groups.offsets import Group
from testkit.simulator.machine import DATA, SECOND_DATA
from testkit.simulator.mover import Mover
from testkit.simulator.simulation import DONE_S_MAX, Outcome, Simulation, Trace

FLUSHED_SHARE = 0.4
MIXED_SHARE = 0.25
MEMBERS_MAX = 4
TOPICS = ("t", "u")
PARTITIONS_MAX = 4
OFFSETS_PARTITIONS_MAX = 3
LOOK_S = 0.1
STABLE_S = 1.0
READ_TRIES = 50
UNLOADED_S_MAX = 0.3
STORM_SHARE, STORM_S = 0.3, 0.4
GROUP_FAULTS = ("unload", "unload", "unload", "unload_at_once", "unload_at_once", "lead_again")

Member = ClassicMember | ConsumerMember
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
        random, (session_ms, _) = self._group_random, self._timeouts
        options = {
            "offsets.topic.num.partitions": str(self._offsets_partitions),
            "log.cleaner.min.cleanable.ratio": "0.01",
            "group.initial.rebalance.delay.ms": str(random.choice((0, 100, int(INITIAL_DELAY_S_MAX * 1000)))),
            "group.min.session.timeout.ms": "500",
            "group.consumer.min.session.timeout.ms": "500",
            "group.consumer.session.timeout.ms": str(session_ms),
            "group.consumer.min.heartbeat.interval.ms": "50",
            "group.consumer.heartbeat.interval.ms": "100",
            "group.consumer.assignment.interval.ms": str(random.choice((0, 0, 500))),
        }
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
        # Sessions are short: with slow disk operations some would expire again and again.
        self.loop.slow_share = 0.0
        await self.machine.until_up()
        for group in groups:
            group.quiet = True
            group.peace_from = self.loop.now + REQUEST_TIMEOUT_S
        await self._settle(groups, members)
        for group in groups:
            group.committing = False
        while any(member.is_working for member in members):
            await asyncio.sleep(LOOK_S)
        for group in groups:
            await self._read_again(group)
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
        groups, members = [], []
        for number in range(random.choice((1, 1, 2))):
            kind = random.choice((ClassicMember, ConsumerMember))
            is_mixed = self._random(f"mixed {number}").random() < MIXED_SHARE
            group = Group(f"g{number}", topics, *self._timeouts, is_mixed)
            groups.append(group)
            for index in range(random.randint(2, MEMBERS_MAX)):
                name = f"{group.name}-{index}"
                if is_mixed:
                    # The group is converted whenever the first member of one kind joins or the last one leaves.
                    kind = (ClassicMember, ConsumerMember)[index % 2]
                instance_id = f"static-{index}" if random.random() < 0.3 else None
                members.append(kind(name, self.world, Random(random.getrandbits(64)), group, instance_id))
        if self._is_flushed:
            self.machine.flushed = [(GROUPS_TOPIC, index) for index in range(OFFSETS_PARTITIONS_MAX)]
        return groups, members

    async def _settle(self, groups: list[Group], members: list[Member]) -> None:
        """Wait until each subscribed partition has had an owner for STABLE_S; assert that this happens in time."""
        deadline, since = self.loop.now + DONE_S_MAX, self.loop.now
        while self.loop.now - since < STABLE_S:
            wrong = [text for group in groups if (text := _unsettled(group, members))]
            if wrong:
                since = self.loop.now
                assert since < deadline, f"{wrong[0]}, {DONE_S_MAX:.0f} s after the last fault"
            await asyncio.sleep(LOOK_S)

    async def _read_again(self, group: Group) -> None:
        reader = ClassicMember(f"{group.name}-reader", self.world, self._random("reader"), group, None)
        await reader.until_it_works(reader.learn_topics)
        for _ in range(READ_TRIES):
            if await reader.fetch():
                await reader.close()
                return
            await reader.pause(LOOK_S)
        raise AssertionError(f"no coordinator returns the offsets of {group.name}")

    def verdict(self) -> list[Anomaly]:
        return check_groups(self.history, self._is_flushed)

    def count(self, outcome: Outcome) -> None:
        for event in self.history.events:
            if event.kind is Kind.OK:
                outcome.acknowledged += event.operation == "commit"
                outcome.read += event.operation == "fetch"


async def create_surely(client: Client, topic: str, partitions: int, options: dict[str, str]) -> None:
    while await create_topic(client, topic, partitions, options) is None:
        try:
            await client.cluster.partitions(topic)
        except (*LOST, KafkaError):
            await client.pause(LOOK_S)
        else:
            return  # the response was lost or late


def _unsettled(group: Group, members: list[Member]) -> str | None:
    ours = [member for member in members if member.group is group]
    if not all(member.is_settled for member in ours):
        waiting = ", ".join(member.name for member in ours if not member.is_settled)
        return f"{group.name} is not stable: {waiting}"
    if len({member.generation for member in ours}) > 1:
        return f"{group.name} has members at {sorted(member.generation for member in ours)}"
    wanted = {
        TopicPartition(topic, index)
        for member in ours
        for topic in member.topics
        for index in range(group.topics[topic])
    }
    owned = sorted(TopicPartition(*place) for member in ours for place in member.owned)
    return None if owned == sorted(wanted) else f"{group.name} owns {owned} and should own {sorted(wanted)}"

"""What runs with groups have in common, on one machine or in a cluster: options, members, and how a run ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

from headrace.base.errors import KafkaError
from headrace.base.ids import TopicPartition
from testkit.history import History, Kind
from testkit.simulator.admin import create_topic
from testkit.simulator.clients import LOST, REQUEST_TIMEOUT_S, Client, World
from testkit.simulator.groups.classic_members import INITIAL_DELAY_S_MAX, ClassicMember
from testkit.simulator.groups.consumer_members import ConsumerMember
from testkit.simulator.groups.offsets import Group
from testkit.simulator.simulation import DONE_S_MAX, Outcome

MIXED_SHARE = 0.25
MEMBERS_MAX = 4
LOOK_S = 0.1
STABLE_S = 1.0
READ_TRIES = 50

Member = ClassicMember | ConsumerMember


def group_options(random: Random, session_ms: int) -> dict[str, str]:
    return {
        "group.initial.rebalance.delay.ms": str(random.choice((0, 100, int(INITIAL_DELAY_S_MAX * 1000)))),
        "group.min.session.timeout.ms": "500",
        "group.consumer.min.session.timeout.ms": "500",
        "group.consumer.session.timeout.ms": str(session_ms),
        "group.consumer.min.heartbeat.interval.ms": "50",
        "group.consumer.heartbeat.interval.ms": "100",
        "group.consumer.assignment.interval.ms": str(random.choice((0, 0, 500))),
    }


def make_groups(
    world: World,
    random: Random,
    topics: dict[str, int],
    timeouts_ms: tuple[int, int],
    mixing: Callable[[int], Random],
) -> tuple[list[Group], list[Member]]:
    """Return groups and their members. `mixing` decides for the group of each number whether it has members of both kinds."""
    groups: list[Group] = []
    members: list[Member] = []
    for number in range(random.choice((1, 1, 2))):
        kind = random.choice((ClassicMember, ConsumerMember))
        is_mixed = mixing(number).random() < MIXED_SHARE
        group = Group(f"g{number}", topics, *timeouts_ms, is_mixed)
        groups.append(group)
        for index in range(random.randint(2, MEMBERS_MAX)):
            name = f"{group.name}-{index}"
            if is_mixed:
                # The group is converted whenever the first member of one kind joins or the last one leaves.
                kind = (ClassicMember, ConsumerMember)[index % 2]
            instance_id = f"static-{index}" if random.random() < 0.3 else None
            members.append(kind(name, world, Random(random.getrandbits(64)), group, instance_id))
    return groups, members


async def create_surely(
    client: Client, topic: str, partitions: int, options: dict[str, str], replicas: int = 1
) -> None:
    while await create_topic(client, topic, partitions, options, replicas) is None:
        try:
            await client.cluster.partitions(topic)
        except (*LOST, KafkaError):
            await client.pause(LOOK_S)
        else:
            return  # the response was lost or late


async def finish_groups(world: World, groups: list[Group], members: list[Member]) -> None:
    """Wait, after the last fault, until all groups are stable and their members have stopped to commit."""
    world.loop.slow_share = 0.0  # sessions are short: with slow disk operations some would expire again and again
    for group in groups:
        group.quiet = True
        group.peace_from = world.loop.now + REQUEST_TIMEOUT_S
    await _settle(world, groups, members)
    for group in groups:
        group.committing = False
    while any(member.is_working for member in members):
        await asyncio.sleep(LOOK_S)


async def _settle(world: World, groups: list[Group], members: list[Member]) -> None:
    """Wait until each subscribed partition has had an owner for STABLE_S; assert that this happens in time."""
    deadline, since = world.loop.now + DONE_S_MAX, world.loop.now
    while world.loop.now - since < STABLE_S:
        wrong = [text for group in groups if (text := _unsettled(group, members))]
        if wrong:
            since = world.loop.now
            assert since < deadline, f"{wrong[0]}, {DONE_S_MAX:.0f} s after the last fault"
        await asyncio.sleep(LOOK_S)


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


async def read_again(world: World, random: Random, group: Group) -> None:
    """Record the committed offsets of a group in the history, as a new client reads them."""
    reader = ClassicMember(f"{group.name}-reader", world, random, group, None)
    await reader.until_it_works(reader.learn_topics)
    for _ in range(READ_TRIES):
        if await reader.fetch():
            await reader.close()
            return
        await reader.pause(LOOK_S)
    raise AssertionError(f"no coordinator returns the offsets of {group.name}")


def count_commits(history: History, outcome: Outcome) -> None:
    for event in history.events:
        if event.kind is Kind.OK:
            outcome.acknowledged += event.operation == "commit"
            outcome.read += event.operation == "fetch"

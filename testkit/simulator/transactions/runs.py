"""What runs with transactions have in common, on one machine or in a cluster: the identities of producers, and how a run ends."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random

from headrace.base.errors import ErrorCode, KafkaError
from headrace.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from testkit.history import History, Kind
from testkit.simulator.clients import LOST, World
from testkit.simulator.groups.offsets import Group
from testkit.simulator.readers import LATEST, READ_COMMITTED, READ_UNCOMMITTED
from testkit.simulator.simulation import DONE_S_MAX, Outcome
from testkit.simulator.transactions.clients import END, Identity
from testkit.simulator.transactions.readers import READ, OffsetsReader, Place, TransactionReader

LOOK_S = 0.1
UNDECIDED = ("Ongoing", "PrepareCommit", "PrepareAbort")


def draw_identities(
    random: Random, topics: dict[str, int], identities_max: int, shared_share: float
) -> Iterator[tuple[Identity, Group, list[str]]]:
    """Yield identities of producers, the group whose offsets each commits, and the names of the one or two producers with it."""
    for number in range(random.randint(1, identities_max)):
        identity = Identity(f"id-{number}", f"g{number}")
        letters = "ab" if random.random() < shared_share else "a"
        yield identity, Group(identity.group, topics, 0, 0), [f"producer{number}{letter}" for letter in letters]


async def settle_transactions(world: World, random: Random, topic: str, partitions: int) -> None:
    """Wait until every transaction has ended, by its markers or its timeout; assert that this happens in time."""
    reader = TransactionReader("settler", world, random, topic, partitions, READ_COMMITTED)
    await reader.find_topic(topic)
    deadline = world.loop.now + DONE_S_MAX
    while wrong := await _unsettled(reader, topic, partitions):
        assert world.loop.now < deadline, f"{wrong}, {DONE_S_MAX:.0f} s after the last producer"
        await asyncio.sleep(LOOK_S)
    await reader.close()


async def _unsettled(reader: TransactionReader, topic: str, partitions: int) -> str | None:
    try:
        for broker in await reader.cluster.brokers():
            connection = await reader.cluster.broker(broker)
            response: ListTransactionsResponse = await connection.request(
                ListTransactionsRequest(state_filters=list(UNDECIDED))
            )
            if response.error_code:
                return f"broker {broker} lists no transactions: {ErrorCode(response.error_code).name}"
            if response.transaction_states:
                return f"a transaction stays open: {response.transaction_states[0]}"
        for index in range(partitions):
            reader.isolation_level = READ_UNCOMMITTED
            end = (await reader.list_offset(index, LATEST)).offset
            reader.isolation_level = READ_COMMITTED
            stable = (await reader.list_offset(index, LATEST)).offset
            if stable != end:
                return f"{topic}-{index} ends at {end} and is stable to {stable}"
    except (*LOST, KafkaError) as error:
        await reader.refresh()
        return str(error)
    return None


async def read_final_offsets(world: World, random: Random, group: Group) -> dict[tuple[str, Place], int]:
    """Return the committed offsets of a group, as a new client reads them."""
    reader = OffsetsReader(f"final-{group.name}", world, random, group)
    await reader.until_it_works(reader.learn_topics)
    deadline = world.loop.now + DONE_S_MAX
    while not await reader.fetch():
        assert world.loop.now < deadline, f"no coordinator returns the offsets of {group.name}"
        await asyncio.sleep(LOOK_S)
    offsets = world.history.events[-1].value["offsets"]
    await reader.close()
    return {(group.name, (topic, index)): offset for topic, index, offset in offsets}


def count_transactions(history: History, outcome: Outcome) -> None:
    for event in history.events:
        if event.kind is Kind.OK and event.operation == END:
            outcome.acknowledged += 1
        elif event.kind is Kind.OK and event.operation == READ:
            outcome.read += len(event.value["records"])

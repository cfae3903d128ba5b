"""Draws the clients of a seed: producers, readers, one that looks up offsets, one that creates and deletes topics."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from testkit.simulator.admin import Operator
from testkit.simulator.clients import World
from testkit.simulator.producers import IdempotentProducer, PlainProducer
from testkit.simulator.readers import FollowingReader, JumpingReader, OffsetAsker

TOPIC = "t"
PARTITIONS_MAX = 3
BATCHES_MAX = 45
CHURN_TOPICS = 2
FLUSHED_SHARE = 0.3


class Workload(NamedTuple):
    partitions: int
    topic_options: dict[str, str]
    is_flushed: bool  # acknowledged records are on disk
    producers: list[IdempotentProducer | PlainProducer]
    others: list[FollowingReader | JumpingReader | OffsetAsker | Operator]


def make_workload(world: World, chance: Random) -> Workload:
    partitions = chance.randint(1, PARTITIONS_MAX)
    options = {
        "internal.segment.bytes": str(chance.choice((16_000, 40_000, 1_000_000))),
        "index.interval.bytes": str(chance.choice((0, 300, 4096))),
    }

    is_flushed = chance.random() < FLUSHED_SHARE
    if is_flushed:
        options["flush.messages"] = "1"

    def child() -> Random:
        return Random(chance.getrandbits(64))

    producers: list[IdempotentProducer | PlainProducer] = []
    for number in range(chance.randint(1, 3)):
        batches = chance.randint(5, BATCHES_MAX)
        in_flight = chance.choice((1, 1, 5))
        partition = chance.randrange(partitions)
        name = f"idempotent-{number}"
        producers.append(IdempotentProducer(name, world, child(), TOPIC, batches, partition, in_flight))
    for number in range(chance.randint(1, 2)):
        batches = chance.randint(5, BATCHES_MAX)
        acks = chance.choice((-1, 1))
        producers.append(PlainProducer(f"plain-{number}", world, child(), TOPIC, batches, acks, partitions))
    return Workload(
        partitions,
        options,
        is_flushed,
        producers,
        [
            *(
                FollowingReader(f"following-{n}", world, child(), TOPIC, partitions)
                for n in range(chance.randint(1, 2))
            ),
            JumpingReader("jumping", world, child(), TOPIC, partitions),
            OffsetAsker("asking", world, child(), TOPIC, partitions),
            Operator("operator", world, child(), CHURN_TOPICS),
        ],
    )

"""Draws the clients of a seed: producers, readers, one that looks up offsets, one that creates and deletes topics."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

from testkit.simulator.admin import Operator
from testkit.simulator.clients import World
from testkit.simulator.producers import IdempotentProducer, PlainProducer
from testkit.simulator.readers import FollowingReader, JumpingReader, OffsetFinder

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
    others: list[FollowingReader | JumpingReader | OffsetFinder | Operator]


def make_workload(world: World, random: Random) -> Workload:
    partitions = random.randint(1, PARTITIONS_MAX)
    options = {
        "internal.segment.bytes": str(random.choice((16_000, 40_000, 1_000_000))),
        "index.interval.bytes": str(random.choice((0, 300, 4096))),
    }

    is_flushed = random.random() < FLUSHED_SHARE
    if is_flushed:
        options["flush.messages"] = "1"

    def child() -> Random:
        return Random(random.getrandbits(64))

    producers: list[IdempotentProducer | PlainProducer] = []
    for number in range(random.randint(1, 3)):
        batches = random.randint(5, BATCHES_MAX)
        in_flight = random.choice((1, 1, 5))
        partition = random.randrange(partitions)
        name = f"idempotent-{number}"
        producers.append(IdempotentProducer(name, world, child(), TOPIC, batches, partition, in_flight))
    for number in range(random.randint(1, 2)):
        batches = random.randint(5, BATCHES_MAX)
        acks = random.choice((-1, 1))
        producers.append(PlainProducer(f"plain-{number}", world, child(), TOPIC, batches, acks, partitions))
    return Workload(
        partitions,
        options,
        is_flushed,
        producers,
        [
            *(
                FollowingReader(f"following-{n}", world, child(), TOPIC, partitions)
                for n in range(random.randint(1, 2))
            ),
            JumpingReader("jumping", world, child(), TOPIC, partitions),
            OffsetFinder("asking", world, child(), TOPIC, partitions),
            Operator("operator", world, child(), CHURN_TOPICS),
        ],
    )

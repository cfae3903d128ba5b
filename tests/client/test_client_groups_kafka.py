"""Our members in groups on real Kafka, alone and together with Java's consumer."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable, Iterator
from typing import Any

import pytest
from testkit.kafka_peer import KafkaPeer, java, require_kafka
from tests.client.member_harness import (
    PROTOCOLS,
    SHORT_TIMEOUTS,
    applications,
    make_topic,
    partitions,
    share,
    share_evenly,
    until,
)

from headrace.base.ids import TopicPartition
from headrace.client.group.membership import CommittedOffset

pytestmark = [pytest.mark.java, pytest.mark.long]
JAVA_CONSUMER = "org.apache.kafka.tools.consumer.ConsoleConsumer"


@pytest.fixture(scope="module")
def kafka() -> Iterator[KafkaPeer]:
    require_kafka()
    with KafkaPeer({**SHORT_TIMEOUTS, "offsets.topic.num.partitions": "3"}) as kafka:
        yield kafka


def run(work: Awaitable[Any]) -> None:
    asyncio.run(asyncio.wait_for(work, 100))


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_members_share_commit_leave_and_die(kafka: KafkaPeer, protocol: str) -> None:
    async def work() -> None:
        await make_topic(kafka.bootstrap, f"t-{protocol}", 4)
        everything, group = partitions(f"t-{protocol}", 4), {"group.id": f"g-{protocol}"}
        async with applications(kafka.bootstrap, protocol) as make:
            one = make(f"t-{protocol}", **group)

            async def commit(revoked: frozenset[TopicPartition]) -> None:
                offsets = {place: CommittedOffset(place.partition + 1) for place in revoked}
                await one.commits.commit(offsets, one.member.group_metadata, 10.0, lambda: one.member.group_metadata)

            one.on_revoked = commit
            await until(lambda: share_evenly([one], everything))
            two = make(f"t-{protocol}", **group)
            static = make(f"t-{protocol}", **group, **{"group.instance.id": "i"})
            await until(lambda: share_evenly([one, two, static], everything))
            assert one.failure is None
            moved = two.assignment | static.assignment
            found = await two.commits.committed(
                moved, two.member.group_metadata, 10.0, lambda: two.member.group_metadata
            )
            assert {place: value.offset for place, value in found.items()} == {
                place: place.partition + 1 for place in moved
            }
            before = static.assignment
            await static.close()
            again = make(f"t-{protocol}", **group, **{"group.instance.id": "i"})
            await until(lambda: share_evenly([one, two, again], everything))
            assert again.assignment == before
            await two.close()
            await until(lambda: share_evenly([one, again], everything))
            await one.die()
            await until(lambda: share_evenly([again], everything))
            await again.close(operation="leave_group")

    run(work())


@pytest.mark.parametrize(
    ("protocol", "java_assignor"),
    [
        ("range", "org.apache.kafka.clients.consumer.RangeAssignor"),
        ("sticky", "org.apache.kafka.clients.consumer.StickyAssignor"),
        ("cooperative", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"),
        ("consumer", None),
    ],
)
def test_members_share_a_group_with_the_java_consumer(kafka: KafkaPeer, protocol: str, java_assignor: str) -> None:
    """Whichever of them leads the group, the other understands it."""

    async def work() -> None:
        await make_topic(kafka.bootstrap, f"j-{protocol}", 4)
        everything, group = partitions(f"j-{protocol}", 4), {"group.id": f"j-{protocol}"}
        if java_assignor is None:
            properties = {"group.protocol": "consumer"}
        else:
            properties = {
                "partition.assignment.strategy": java_assignor,
                "session.timeout.ms": "4000",
                "heartbeat.interval.ms": "200",
            }
        options = [f"--consumer-property={name}={value}" for name, value in (properties | group).items()]
        command = java(JAVA_CONSUMER, "--bootstrap-server", kafka.bootstrap, "--topic", f"j-{protocol}", *options)
        async with applications(kafka.bootstrap, protocol) as make:
            one = make(f"j-{protocol}", **group)
            await until(lambda: share_evenly([one], everything))
            with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as java_consumer:
                try:
                    await until(lambda: len(one.assignment) == 2, "half of it goes to Java's consumer")
                    await one.close()
                    two = make(f"j-{protocol}", **group)  # Java's consumer leads now
                    await until(lambda: len(two.assignment) == 2, "Java's consumer gives half of it")
                finally:
                    java_consumer.kill()
            await until(lambda: share([two], everything))
            assert TopicPartition(f"j-{protocol}", 0) in two.assignment

    run(work())

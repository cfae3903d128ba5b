"""Group members on a real node: they share topics, die, return and hand over partitions in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from typing import Any

import pytest
from tests.client.member_harness import (
    PROTOCOLS,
    SHORT_TIMEOUTS,
    applications,
    delete_topic,
    grow_topic,
    make_topic,
    partitions,
    share,
    share_evenly,
    until,
)

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.client.group.membership import CommittedOffset, GroupMetadata, Subscription
from headrace.testing.cluster import EmbeddedNode

every_protocol = pytest.mark.parametrize("protocol", PROTOCOLS)


@pytest.fixture
def node() -> Iterator[EmbeddedNode]:
    with EmbeddedNode(SHORT_TIMEOUTS) as node:
        yield node


def run(work: Awaitable[Any]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


@every_protocol
def test_members_share_a_topic_and_take_over_when_one_leaves_or_dies(node: EmbeddedNode, protocol: str) -> None:
    async def work() -> None:
        await make_topic(node.bootstrap, "t", 6)
        async with applications(node.bootstrap, protocol) as make:
            one = make("t")
            await until(lambda: share_evenly([one], partitions("t", 6)), "one has all")
            assert one.events == [("assigned", partitions("t", 6))]
            two, three = make("t"), make("t")
            await until(lambda: share_evenly([one, two, three], partitions("t", 6)), "three share")
            await two.close()
            assert not two.assignment
            assert two.events[-1][0] == "revoked"
            await until(lambda: share_evenly([one, three], partitions("t", 6)), "two share after one has left")
            await one.die()
            await until(lambda: share_evenly([three], partitions("t", 6)), "the last has all after another has died")

    run(work())


@pytest.mark.parametrize("protocol", ["cooperative", "consumer"])
def test_incremental_rebalances_revoke_only_partitions_that_move(node: EmbeddedNode, protocol: str) -> None:
    async def work() -> None:
        await make_topic(node.bootstrap, "t", 6)
        async with applications(node.bootstrap, protocol) as make:
            one = make("t")
            await until(lambda: share_evenly([one], partitions("t", 6)))
            two = make("t")
            await until(lambda: share_evenly([one, two], partitions("t", 6)))
            given_up = {place for kind, some in one.events if kind != "assigned" for place in some}
            assert given_up == partitions("t", 6) - one.assignment
            assert [kind for kind, some in one.events if some] == ["assigned", "revoked"]

    run(work())


@pytest.mark.parametrize("protocol", ["range", "sticky"])
def test_eager_members_revoke_all_partitions_before_they_rejoin(node: EmbeddedNode, protocol: str) -> None:
    async def work() -> None:
        await make_topic(node.bootstrap, "t", 6)
        async with applications(node.bootstrap, protocol) as make:
            one = make("t")
            await until(lambda: share_evenly([one], partitions("t", 6)))
            two = make("t")
            await until(lambda: share_evenly([one, two], partitions("t", 6)))
            everything = frozenset(partitions("t", 6))
            assert one.events == [("assigned", everything), ("revoked", everything), ("assigned", one.assignment)]
            assert two.events == [("assigned", two.assignment)]

    run(work())


@every_protocol
def test_a_returning_static_member_causes_no_rebalance(node: EmbeddedNode, protocol: str) -> None:
    async def work() -> None:
        await make_topic(node.bootstrap, "t", 6)
        async with applications(node.bootstrap, protocol) as make:
            more = {"session.timeout.ms": 20_000}
            one = make("t", **more)
            await until(lambda: share_evenly([one], partitions("t", 6)))
            two = make("t", **{"group.instance.id": "two", **more})
            await until(lambda: share_evenly([one, two], partitions("t", 6)))
            before, events_before = two.assignment, list(one.events)
            await two.close()
            again = make("t", **{"group.instance.id": "two", **more})
            await until(lambda: share_evenly([one, again], partitions("t", 6)))
            assert again.assignment == before
            assert one.events == events_before

    run(work())


@every_protocol
def test_a_static_member_leaves_for_good_with_operation_leave_group(node: EmbeddedNode, protocol: str) -> None:
    async def work() -> None:
        await make_topic(node.bootstrap, "t", 2)
        async with applications(node.bootstrap, protocol) as make:
            one, two = make("t"), make("t", **{"group.instance.id": "two", "session.timeout.ms": 60_000})
            await until(lambda: share_evenly([one, two], partitions("t", 2)))
            await two.close(operation="leave_group")
            await until(lambda: share_evenly([one], partitions("t", 2)))

    run(work())


def test_a_newer_static_member_fences_the_older_one_in_a_classic_group(node: EmbeddedNode) -> None:
    async def work() -> None:
        await make_topic(node.bootstrap, "t", 2)
        async with applications(node.bootstrap, "range") as make:
            one = make("t", **{"group.instance.id": "i"})
            await until(lambda: share_evenly([one], partitions("t", 2)))
            two = make("t", **{"group.instance.id": "i"})
            await until(lambda: one.failure is not None)
            assert isinstance(one.failure, KafkaError) and one.failure.code is ErrorCode.FENCED_INSTANCE_ID
            assert one.events[-1] == ("lost", partitions("t", 2))
            await until(lambda: share_evenly([two], partitions("t", 2)))

    run(work())


def test_a_consumer_group_refuses_an_instance_id_that_is_in_use(node: EmbeddedNode) -> None:
    async def work() -> None:
        await make_topic(node.bootstrap, "t", 2)
        async with applications(node.bootstrap, "consumer") as make:
            one = make("t", **{"group.instance.id": "i"})
            await until(lambda: share_evenly([one], partitions("t", 2)))
            two = make("t", **{"group.instance.id": "i"})
            await until(lambda: two.failure is not None)
            assert isinstance(two.failure, KafkaError) and two.failure.code is ErrorCode.UNRELEASED_INSTANCE_ID
            assert share_evenly([one], partitions("t", 2))

    run(work())


@every_protocol
def test_a_member_that_exceeds_max_poll_interval_ms_loses_its_partitions(node: EmbeddedNode, protocol: str) -> None:
    async def work() -> None:
        await make_topic(node.bootstrap, "t", 4)
        async with applications(node.bootstrap, protocol) as make:
            one = make("t", **{"max.poll.interval.ms": 400})
            two = make("t")
            await until(lambda: share_evenly([one, two], partitions("t", 4)))
            await one.stop_polling()
            await until(lambda: share_evenly([two], partitions("t", 4)))
            assert not one.assignment
            lost = [some for kind, some in one.events if kind == "assigned"][-1]
            one.events.clear()
            one.start()
            await until(lambda: share_evenly([one, two], partitions("t", 4)))
            assert [kind for kind, _ in one.events][:2] == ["lost", "assigned"]
            assert one.events[0][1] >= lost

    run(work())


@every_protocol
def test_offsets_committed_on_revocation_are_visible_to_the_next_owner(node: EmbeddedNode, protocol: str) -> None:
    async def work() -> None:
        await make_topic(node.bootstrap, "t", 4)
        async with applications(node.bootstrap, protocol) as make:
            one = make("t")

            async def commit(revoked: frozenset[TopicPartition]) -> None:
                offsets = {place: CommittedOffset(10 + place.partition, metadata="mine") for place in revoked}
                await one.commits.commit(offsets, one.member.group_metadata, 5.0, lambda: one.member.group_metadata)

            one.on_revoked = commit
            await until(lambda: share_evenly([one], partitions("t", 4)))
            two = make("t")
            await until(lambda: share_evenly([one, two], partitions("t", 4)))
            assert one.failure is None
            found = await two.commits.committed(two.assignment, two.member.group_metadata, 5.0)
            assert {place: value.offset for place, value in found.items()} == {
                place: 10 + place.partition for place in two.assignment
            }
            assert {value.metadata for value in found.values()} == {"mine"}

    run(work())


@every_protocol
def test_a_member_that_was_removed_cannot_commit(node: EmbeddedNode, protocol: str) -> None:
    async def work() -> None:
        await make_topic(node.bootstrap, "t", 2)
        async with applications(node.bootstrap, protocol) as make:
            one = make("t", **{"max.poll.interval.ms": 300})
            await until(lambda: share_evenly([one], partitions("t", 2)))
            await one.stop_polling()
            await until(lambda: not one.assignment)
            offsets = {TopicPartition("t", 0): CommittedOffset(5)}
            with pytest.raises(KafkaError) as refused:
                await one.commits.commit(offsets, one.member.group_metadata, 5.0, lambda: one.member.group_metadata)
            assert refused.value.code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION)
            assert await one.commits.committed(offsets, GroupMetadata("g"), 5.0) == {}

    run(work())


def test_offsets_can_be_committed_without_membership(node: EmbeddedNode) -> None:
    async def work() -> None:
        await make_topic(node.bootstrap, "t", 2)
        async with applications(node.bootstrap, "range") as make:
            one, group = make("t", **{"group.id": "other"}), GroupMetadata("g")
            offsets = {TopicPartition("t", 1): CommittedOffset(7, 0, "why")}
            await one.commits.commit(offsets, group, 5.0)
            assert await one.commits.committed(partitions("t", 2), group, 5.0) == offsets
            with pytest.raises(KafkaError) as refused:
                await one.commits.commit({TopicPartition("none", 0): CommittedOffset(1)}, group, 2.0)
            assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            assert "none-0" in str(refused.value)

    run(work())


@every_protocol
def test_new_partitions_and_new_topics_are_assigned(node: EmbeddedNode, protocol: str) -> None:
    async def work() -> None:
        await make_topic(node.bootstrap, "t", 1)
        async with applications(node.bootstrap, protocol) as make:
            one, two = make("t", "later"), make("t", "later")
            await until(lambda: share_evenly([one, two], partitions("t", 1)))
            await grow_topic(node.bootstrap, "t", 4)
            await until(lambda: share_evenly([one, two], partitions("t", 4)))
            await make_topic(node.bootstrap, "later", 2)
            await until(lambda: share([one, two], partitions("t", 4) | partitions("later", 2)))

    run(work())


@every_protocol
def test_a_pattern_must_match_the_whole_topic_name(node: EmbeddedNode, protocol: str) -> None:
    async def work() -> None:
        for name in ("logs-a", "logs-b", "my-logs-a"):
            await make_topic(node.bootstrap, name, 2)
        async with applications(node.bootstrap, protocol) as make:
            one = make(pattern="logs-.*" if protocol == "consumer" else "logs-.*|__consumer_offsets")
            await until(lambda: share([one], partitions("logs-a", 2) | partitions("logs-b", 2)))
            if protocol != "consumer":  # its coordinator looks for new topics only every ten seconds
                await make_topic(node.bootstrap, "logs-c", 1)
                everything = partitions("logs-a", 2) | partitions("logs-b", 2) | partitions("logs-c", 1)
                await until(lambda: share([one], everything))

    run(work())


@every_protocol
def test_an_invalid_pattern_raises_invalid_regular_expression(node: EmbeddedNode, protocol: str) -> None:
    async def work() -> None:
        async with applications(node.bootstrap, protocol) as make:
            with pytest.raises(KafkaError) as refused:
                one = make(pattern="logs-(")
                await until(lambda: one.failure is not None)
                raise one.failure
            assert refused.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION

    run(work())


@every_protocol
def test_changing_the_subscription_changes_the_assignment(node: EmbeddedNode, protocol: str) -> None:
    async def work() -> None:
        await make_topic(node.bootstrap, "t", 2)
        await make_topic(node.bootstrap, "u", 2)
        async with applications(node.bootstrap, protocol) as make:
            one, two = make("t"), make("t", "u")
            await until(lambda: share([one, two], partitions("t", 2) | partitions("u", 2)))
            one.member.subscribe(Subscription(frozenset({"u"})))
            two.member.subscribe(Subscription(frozenset({"t"})))
            await until(lambda: one.assignment == partitions("u", 2) and two.assignment == partitions("t", 2))

    run(work())


def test_a_consumer_group_revokes_and_reassigns_a_recreated_topic(node: EmbeddedNode) -> None:
    async def work() -> None:
        await make_topic(node.bootstrap, "t", 2)
        async with applications(node.bootstrap, "consumer") as make:
            one = make("t")
            await until(lambda: share_evenly([one], partitions("t", 2)))
            await delete_topic(node.bootstrap, "t")
            await make_topic(node.bootstrap, "t", 2)
            await until(lambda: len(one.events) >= 3 and share_evenly([one], partitions("t", 2)))
            assert [kind for kind, some in one.events if some] == ["assigned", "revoked", "assigned"]

    run(work())


@every_protocol
def test_a_group_survives_a_restart_of_its_coordinator(node: EmbeddedNode, protocol: str) -> None:
    async def work() -> None:
        await make_topic(node.bootstrap, "t", 4)
        async with applications(node.bootstrap, protocol) as make:
            one, two = make("t"), make("t")
            await until(lambda: share_evenly([one, two], partitions("t", 4)))
            await asyncio.to_thread(node.restart)
            three = make("t")
            await until(lambda: share_evenly([one, two, three], partitions("t", 4)))

    run(work())


def test_members_with_several_assignors_agree_on_a_common_one(node: EmbeddedNode) -> None:
    async def work() -> None:
        await make_topic(node.bootstrap, "t", 4)
        async with applications(node.bootstrap, "range") as make:
            one = make("t", **{"partition.assignment.strategy": "range,cooperative-sticky"})
            two = make("t", **{"partition.assignment.strategy": "cooperative-sticky,range"})
            three = make("t")
            await until(lambda: share([one, two, three], partitions("t", 4)))
            await three.close()
            await until(lambda: share_evenly([one, two], partitions("t", 4)))

    run(work())


def test_a_group_moves_from_classic_to_consumer_and_back(node: EmbeddedNode) -> None:
    async def work() -> None:
        await make_topic(node.bootstrap, "t", 4)
        async with applications(node.bootstrap, "cooperative") as make:
            one = make("t")
            await until(lambda: share_evenly([one], partitions("t", 4)))
            two = make("t", **{"group.protocol": "consumer"})
            await until(lambda: share_evenly([one, two], partitions("t", 4)))
            await two.close()
            await until(lambda: share_evenly([one], partitions("t", 4)))

    run(work())


def test_an_unreachable_coordinator_fails_commits_but_not_the_member(node: EmbeddedNode) -> None:
    async def work() -> None:
        node.stop()
        async with applications(node.bootstrap, "range") as make:
            one = make("t", **{"request.timeout.ms": 500})
            await asyncio.sleep(0.3)
            assert one.failure is None and not one.settled
            with pytest.raises(Exception, match=r"connect|no response"):
                await one.commits.commit({TopicPartition("t", 0): CommittedOffset(1)}, GroupMetadata("g"), 0.3)
            await one.close()

    run(work())

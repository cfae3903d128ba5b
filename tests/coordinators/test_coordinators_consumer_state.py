"""State of consumer groups: regular expressions, members' commits, foreign records, and coordinator moves."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tests.coordinators.consumer_clients import Client, settle
from tests.coordinators.group_harness import GroupHarness

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import ZERO_UUID, uuid_from_text
from headrace.coordinators.group.consumer import regexes
from headrace.coordinators.group.consumer.description import describe
from headrace.coordinators.group.consumer.groups import ConsumerGroup
from headrace.coordinators.group.consumer.members import MemberState
from headrace.coordinators.group.consumer.topic_hashes import TopicHashes
from headrace.coordinators.group.records import GroupRecord, decode_group_record, encode_group_record
from headrace.coordinators.group.request import CoordinatorRequest
from headrace.coordinators.group.xxh3 import xxh3_64
from headrace.metadata.image import Broker, Image, Partition, Topic
from headrace.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from headrace.protocol.messages.offset_commit import OffsetCommitRequest
from headrace.protocol.messages.stored import consumer_groups as stored


@pytest.fixture
def harness() -> GroupHarness:
    return GroupHarness({"orders": 6, "order-lines": 2, "clicks": 3}, group_consumer_assignment_interval_ms=0)


def group_of(harness: GroupHarness, name: str = "g") -> ConsumerGroup:
    return harness.shard.consumers.groups[name]


def names_of(harness: GroupHarness, client: Client) -> set[str]:
    return {harness.image.topic_names[topic] for topic, _ in client.owned}


# --- regular expressions


def test_a_regex_subscription_resolves_to_the_matching_topics(harness: GroupHarness) -> None:
    a = Client(harness, "a", subscribed_topic_regex="order.*")
    a.beat()
    assert names_of(harness, a) == {"orders", "order-lines"} and len(a.owned) == 8
    assert group_of(harness).resolved["order.*"].topics == ("order-lines", "orders")
    [member] = describe(harness.shard, "g").members
    assert member.subscribed_topic_regex == "order.*" and member.subscribed_topic_names == []


def test_new_topics_match_a_regex_only_after_the_refresh_interval(harness: GroupHarness) -> None:
    a = Client(harness, "a", subscribed_topic_regex="order.*")
    a.beat()
    harness.set_topics({"orders": 6, "order-lines": 2, "orders-2": 4})
    a.beat()
    assert len(a.owned) == 8, "not again within ten seconds"
    harness.pass_time(regexes.REFRESH_MS_MIN + 1)
    settle(harness, [a], 2)
    assert names_of(harness, a) == {"orders", "order-lines", "orders-2"}


def test_an_unchanged_regex_is_resolved_again_after_ten_minutes(harness: GroupHarness) -> None:
    a = Client(harness, "a", subscribed_topic_regex="order.*")
    a.beat()
    for _ in range(20):
        harness.pass_time(30_000)
        a.beat()
    assert group_of(harness).resolved["order.*"].at_ms == harness.now_ms - 600_000
    harness.pass_time(30_000)
    a.beat()
    assert group_of(harness).resolved["order.*"].at_ms == harness.now_ms
    assert group_of(harness).epochs.group == 2, "nothing to assign again"


def test_a_regex_matches_only_topics_that_the_member_may_describe(harness: GroupHarness) -> None:
    a = Client(harness, "a", subscribed_topic_regex=".*")
    a.beat(allowed=lambda topic: topic == "clicks")
    assert names_of(harness, a) == {"clicks"}


def test_many_topics_are_matched_in_slices(harness: GroupHarness) -> None:
    many = {f"t{number}": 1 for number in range(3 * regexes.SEARCH_BUDGET)}
    harness.set_topics(many)
    a = Client(harness, "a", subscribed_topic_regex="t.*9")
    a.beat()
    assert not a.owned and len(group_of(harness).search)
    harness.pass_time(100)
    assert not len(group_of(harness).search)
    a.beat()
    assert len(a.owned) == len(many) // 10


def test_a_large_regex_is_matched_against_fewer_names_per_slice(harness: GroupHarness) -> None:
    many = {f"t{number}": 1 for number in range(200)}
    harness.set_topics(many)
    a = Client(harness, "a", subscribed_topic_regex="(t?0*){300}")
    a.beat()
    assert group_of(harness).search[regexes.UNDER_WAY].position in range(1, 100)
    harness.pass_time(100)
    assert group_of(harness).resolved["(t?0*){300}"].topics == ("t0",)


@pytest.mark.parametrize("regex", ["(a+)+b", "(a|aa)+b", "(.*a){12}b"])
def test_regexes_with_catastrophic_backtracking_are_resolved(harness: GroupHarness, regex: str) -> None:
    """A backtracking engine would need years for each name, and block the node's event loop."""
    harness.set_topics({**{"a" * length: 1 for length in range(200, 250)}, "a" * 100 + "b": 2})
    a = Client(harness, "a", subscribed_topic_regex=regex)
    a.beat()
    assert group_of(harness).resolved[regex].topics == ("a" * 100 + "b",) and len(a.owned) == 2


def test_a_stored_regex_that_is_invalid_here_resolves_to_no_topics(harness: GroupHarness) -> None:
    a, b = Client(harness, "a", subscribed_topic_regex="order.*"), Client(harness, "b", "clicks")
    settle(harness, [a, b])
    harness.journal.written = [
        tuple(part and part.replace(b"order.*", b"order++") for part in record) for record in harness.journal.written
    ]
    harness.move()
    assert group_of(harness).resolved["order++"].topics == ("order-lines", "orders")
    harness.set_topics({"orders": 6, "order-lines": 2, "clicks": 3, "orders-2": 4})
    harness.pass_time(regexes.REFRESH_MS_MIN + 1)
    settle(harness, [b, a], 3)
    assert group_of(harness).resolved["order++"].topics == ()
    assert names_of(harness, b) == {"clicks"} and not a.owned


def test_a_regex_without_subscribers_is_removed(harness: GroupHarness) -> None:
    a = Client(harness, "a", subscribed_topic_regex="order.*")
    b = Client(harness, "b", subscribed_topic_regex="clicks|orders")
    settle(harness, [a, b], 15)
    assert {len(a.owned), len(b.owned)} == {5, 6}
    b.leave()
    assert [regex for regex, _ in group_of(harness).resolved.items()] == ["order.*"]
    a.more["subscribed_topic_regex"] = ""
    a.beat(full=True)
    assert not len(group_of(harness).resolved)
    settle(harness, [a], 3)
    assert not a.owned


def test_a_second_subscriber_reuses_the_resolved_regex(harness: GroupHarness) -> None:
    a, b = (Client(harness, name, subscribed_topic_regex="orders") for name in "ab")
    a.beat()
    settle(harness, [a, b], 4)
    assert len(a.owned) == len(b.owned) == 3


# --- members' offset commits


def commit(harness: GroupHarness, member_id: str, epoch: int, version: int = 9) -> Callable[..., Any] | None:
    request = OffsetCommitRequest(group_id="g", member_id=member_id, generation_id_or_member_epoch=epoch)
    return harness.shard.consumers.check_commit(CoordinatorRequest(request, version), harness.now_ms, None)


def refused(call: Callable[..., Any], *arguments: Any) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        call(*arguments)
    return caught.value.code


def test_offset_commits_are_checked_against_the_member_epoch(harness: GroupHarness) -> None:
    a, b = Client(harness, "a", "orders"), Client(harness, "b", "orders")
    a.beat()
    settle(harness, [a, b], 4)
    orders = harness.image.topics["orders"].id
    assert commit(harness, "b", 3) is None
    assert refused(commit, harness, "b", 4) == ErrorCode.STALE_MEMBER_EPOCH
    assert refused(commit, harness, "nobody", 3) == ErrorCode.UNKNOWN_MEMBER_ID
    assert refused(commit, harness, "", -1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert refused(commit, harness, "b", 3, 8) == ErrorCode.UNSUPPORTED_VERSION
    kept, other = (min(partition for _, partition in client.owned) for client in (a, b))
    check = commit(harness, "a", 2)
    check("orders", orders, kept)
    check("orders", ZERO_UUID, kept)
    assert refused(check, "orders", orders, other) == ErrorCode.STALE_MEMBER_EPOCH
    assert refused(check, "gone", ZERO_UUID, 0) == ErrorCode.STALE_MEMBER_EPOCH
    newer = commit(harness, "b", 2)
    assert refused(newer, "orders", orders, other) == ErrorCode.STALE_MEMBER_EPOCH, "it was not b's at epoch 2"


def test_commits_without_a_member_require_an_empty_group(harness: GroupHarness) -> None:
    a = Client(harness, "a", "orders")
    a.beat()
    assert refused(commit, harness, "", -1) == ErrorCode.UNKNOWN_MEMBER_ID
    a.leave()
    assert commit(harness, "", -1) is None


def test_offset_fetches_are_checked_against_committed_members(harness: GroupHarness) -> None:
    consumers = harness.shard.consumers
    Client(harness, "a", "orders").beat()
    consumers.check_fetch("g", None, -1)
    consumers.check_fetch("g", "a", 2)
    consumers.check_fetch("unknown", "a", 2)
    assert refused(consumers.check_fetch, "g", "a", 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert refused(consumers.check_fetch, "g", "b", 2) == ErrorCode.UNKNOWN_MEMBER_ID
    harness.journal.late = True
    responses: list[ConsumerGroupHeartbeatResponse] = []
    joining = Client(harness, "b", "orders")
    harness.submit(joining.request(), lambda response, error: responses.append(error or response))
    assert not responses
    assert refused(consumers.check_fetch, "g", "b", 3) == ErrorCode.UNKNOWN_MEMBER_ID, "it is not committed yet"
    assert [member.member_id for member in describe(harness.shard, "g").members] == ["a"]
    harness.journal.commit()
    assert responses and len(describe(harness.shard, "g").members) == 2


def test_groups_are_listed_and_can_be_deleted_only_when_empty(harness: GroupHarness) -> None:
    consumers = harness.shard.consumers
    a = Client(harness, "a", "orders")
    a.beat()
    [listed] = consumers.listed()
    assert (listed.group_id, listed.group_state, listed.group_type) == ("g", "Stable", "consumer")
    assert consumers.is_subscribed("g", "orders") and not consumers.is_subscribed("g", "clicks")
    assert refused(consumers.check_delete, "g") == ErrorCode.NON_EMPTY_GROUP
    a.leave()
    consumers.check_delete("g")
    assert refused(describe, harness.shard, "h") == ErrorCode.GROUP_ID_NOT_FOUND


def test_deleting_a_group_writes_a_tombstone_for_every_key(harness: GroupHarness) -> None:
    a = Client(harness, "a", subscribed_topic_regex="orders")
    a.beat()
    a.leave()
    harness.shard.undo.begin(len(harness.journal.written))

    class Emitting:
        def emit(self, record: GroupRecord) -> None:
            harness.shard.apply(record, 0)
            harness.journal.written.append(encode_group_record(record))

    harness.shard.consumers.delete("g", Emitting())  # type: ignore[arg-type]
    harness.shard.undo.end()
    harness.journal.commit()
    harness.move()
    assert not harness.shard.consumers.groups.items()
    newest = dict(harness.journal.written)
    assert not [key for key, value in newest.items() if value is not None], "every key has its tombstone"


# --- coordinator moves, and records of Kafka or newer versions


def test_a_new_coordinator_continues_a_rebalance(harness: GroupHarness) -> None:
    a, b = Client(harness, "a", "orders", instance_id="i"), Client(harness, "b", "orders")
    a.beat()
    b.beat()
    a.beat()
    before = dict(group_of(harness).members.items())
    assert before["a"].state is MemberState.UNREVOKED_PARTITIONS
    owners = dict(group_of(harness).owners.items())
    harness.move()
    assert dict(group_of(harness).members.items()) == before
    assert dict(group_of(harness).owners.items()) == owners
    assert group_of(harness).static["i"] == "a"
    b.beat()
    assert not b.owned
    a.beat()
    b.beat()
    assert len(b.owned) == 3


def test_a_new_coordinator_starts_a_full_session_for_each_member(harness: GroupHarness) -> None:
    Client(harness, "a", "orders").beat()
    harness.pass_time(40_000)
    harness.move()
    harness.pass_time(44_999)
    assert "a" in group_of(harness).members
    harness.pass_time(1)
    assert "a" not in group_of(harness).members


def test_a_session_expiry_is_retried_after_a_refused_write(harness: GroupHarness) -> None:
    Client(harness, "a", "orders").beat()
    harness.journal.refusal = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    harness.pass_time(46_000)
    assert "a" in group_of(harness).members
    harness.journal.refusal = None
    harness.pass_time(1000)
    assert "a" not in group_of(harness).members


def test_members_with_an_unknown_stored_state_are_fenced(harness: GroupHarness) -> None:
    a = Client(harness, "a", "orders")
    a.beat()
    strange = stored.ConsumerGroupCurrentMemberAssignmentValue(member_epoch=2, previous_member_epoch=2, state=77)
    key = stored.ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="a")
    harness.journal.written.append(encode_group_record(GroupRecord(key, strange)))
    harness.journal.commit()
    harness.move()
    assert group_of(harness).members["a"].state is MemberState.UNKNOWN
    assert a.beat() and a.epoch == 0, "fenced"
    settle(harness, [a], 2)
    assert len(a.owned) == 6


def test_partition_metadata_records_of_older_kafka_are_removed(harness: GroupHarness) -> None:
    Client(harness, "a", "orders").beat()
    key = stored.ConsumerGroupPartitionMetadataKey(group_id="g")
    old = GroupRecord(key, stored.ConsumerGroupPartitionMetadataValue())
    harness.journal.written.append(encode_group_record(old))
    harness.journal.commit()
    harness.move()
    Client(harness, "b", "orders").beat()
    assert GroupRecord(key, None) in [decode_group_record(*record) for record in harness.journal.written]


def test_topic_hashes_match_kafka() -> None:
    """The expected hashes come from a log that Kafka 4.3.1 wrote and from its library."""
    partition = Partition((1,), (1,), 1, 0, 0)
    ids = json.loads('{"clicks": "FO3_26ecRSGAIcFE_aYMtA", "orders": "gwJ1Rt7eR12o0RDSQrB3xQ"}')
    topics = {
        name: Topic(name, uuid_from_text(ids[name]), (partition,) * count)
        for name, count in (("clicks", 3), ("orders", 6))
    }
    image = Image(topics=topics)
    assert TopicHashes().of_group(["clicks", "orders"], image) == 8641855158006711483
    assert TopicHashes().of_group(["none"], image) == 0
    racked = Image(topics=topics, brokers={1: Broker(1, 1, ZERO_UUID, (), {}, "a", False, False, ())})
    assert TopicHashes().of_group(["clicks", "orders"], racked) != 8641855158006711483


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (0, 3244421341483603138),
        (3, 12180141160879835164),
        (8, 12752855198315354378),
        (16, 3159599325006435930),
        (17, 7070371635116224842),
        (64, 1953419934939160347),
        (128, 16813233705924465638),
        (129, 13063484349860316345),
        (240, 4473034316189165092),
        (241, 13654115510048419178),
        (1024, 15878231082470753371),
        (1025, 14435947017053915143),
        (2049, 246499933171993818),
    ],
)
def test_xxh3_64_matches_known_hashes(size: int, expected: int) -> None:
    assert xxh3_64(bytes((index * 7 + size) & 255 for index in range(size))) == expected

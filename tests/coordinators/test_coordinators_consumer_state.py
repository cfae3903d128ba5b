"""State of consumer groups: regular expressions, members' commits, foreign records, and coordinator moves."""

import json

import pytest
from consumer_clients import Client, settle
from group_stage import GroupStage

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import ZERO_UUID, uuid_from_text
from headrace.coordinators.group.consumer import regexes
from headrace.coordinators.group.consumer.description import describe
from headrace.coordinators.group.consumer.members import MemberState
from headrace.coordinators.group.consumer.topic_hashes import TopicHashes
from headrace.coordinators.group.records import GroupRecord, decode_group_record, encode_group_record
from headrace.coordinators.group.request import Asked
from headrace.coordinators.group.xxh3 import xxh3_64
from headrace.metadata.image import Broker, Image, Partition, Topic
from headrace.protocol.messages.offset_commit import OffsetCommitRequest
from headrace.protocol.messages.stored import consumer_groups as stored


@pytest.fixture
def stage():
    return GroupStage({"orders": 6, "order-lines": 2, "clicks": 3}, group_consumer_assignment_interval_ms=0)


def group_of(stage, name="g"):
    return stage.shard.consumers.groups[name]


def names_of(stage, client):
    return {stage.image.topic_names[topic] for topic, _ in client.owned}


# --- regular expressions


def test_an_expression_stands_for_topics(stage):
    a = Client(stage, "a", subscribed_topic_regex="order.*")
    a.beat()
    assert names_of(stage, a) == {"orders", "order-lines"} and len(a.owned) == 8
    assert group_of(stage).resolved["order.*"].topics == ("order-lines", "orders")
    [member] = describe(stage.shard, "g").members
    assert member.subscribed_topic_regex == "order.*" and member.subscribed_topic_names == []


def test_topics_that_come_later_are_found_but_not_at_once(stage):
    a = Client(stage, "a", subscribed_topic_regex="order.*")
    a.beat()
    stage.set_topics({"orders": 6, "order-lines": 2, "orders-2": 4})
    a.beat()
    assert len(a.owned) == 8, "not again within ten seconds"
    stage.pass_time(regexes.REFRESH_MS_MIN + 1)
    settle(stage, [a], 2)
    assert names_of(stage, a) == {"orders", "order-lines", "orders-2"}


def test_a_search_that_found_nothing_new_is_made_again_after_a_while(stage):
    a = Client(stage, "a", subscribed_topic_regex="order.*")
    a.beat()
    for _ in range(20):
        stage.pass_time(30_000)
        a.beat()
    assert group_of(stage).resolved["order.*"].at_ms == stage.now_ms - 600_000
    stage.pass_time(30_000)
    a.beat()
    assert group_of(stage).resolved["order.*"].at_ms == stage.now_ms
    assert group_of(stage).epochs.group == 2, "nothing to assign again"


def test_only_topics_that_the_member_may_describe(stage):
    a = Client(stage, "a", subscribed_topic_regex=".*")
    a.beat(allowed=lambda topic: topic == "clicks")
    assert names_of(stage, a) == {"clicks"}


def test_many_topics_are_looked_at_in_slices(stage):
    many = {f"t{number}": 1 for number in range(3 * regexes.SEARCHED_AT_ONCE)}
    stage.set_topics(many)
    a = Client(stage, "a", subscribed_topic_regex="t.*9")
    a.beat()
    assert not a.owned and len(group_of(stage).search)
    stage.pass_time(100)
    assert not len(group_of(stage).search)
    a.beat()
    assert len(a.owned) == len(many) // 10


def test_a_large_pattern_gets_fewer_names_at_once(stage):
    many = {f"t{number}": 1 for number in range(200)}
    stage.set_topics(many)
    a = Client(stage, "a", subscribed_topic_regex="(t?0*){300}")
    a.beat()
    assert group_of(stage).search[regexes.UNDER_WAY].place in range(1, 100)
    stage.pass_time(100)
    assert group_of(stage).resolved["(t?0*){300}"].topics == ("t0",)


@pytest.mark.parametrize("regex", ["(a+)+b", "(a|aa)+b", "(.*a){12}b"])
def test_an_expression_that_others_would_try_for_ever_is_answered(stage, regex):
    """A backtracking engine would need years for each name, and block the node's event loop."""
    stage.set_topics({**{"a" * length: 1 for length in range(200, 250)}, "a" * 100 + "b": 2})
    a = Client(stage, "a", subscribed_topic_regex=regex)
    a.beat()
    assert group_of(stage).resolved[regex].topics == ("a" * 100 + "b",) and len(a.owned) == 2


def test_an_expression_that_another_program_wrote_may_be_unknown_here(stage):
    a, b = Client(stage, "a", subscribed_topic_regex="order.*"), Client(stage, "b", "clicks")
    settle(stage, [a, b])
    stage.journal.written = [
        tuple(part and part.replace(b"order.*", b"order++") for part in record) for record in stage.journal.written
    ]
    stage.move()
    assert group_of(stage).resolved["order++"].topics == ("order-lines", "orders")
    stage.set_topics({"orders": 6, "order-lines": 2, "clicks": 3, "orders-2": 4})
    stage.pass_time(regexes.REFRESH_MS_MIN + 1)
    settle(stage, [b, a], 3)
    assert group_of(stage).resolved["order++"].topics == ()
    assert names_of(stage, b) == {"clicks"} and not a.owned


def test_an_expression_without_members_is_forgotten(stage):
    a = Client(stage, "a", subscribed_topic_regex="order.*")
    b = Client(stage, "b", subscribed_topic_regex="clicks|orders")
    settle(stage, [a, b], 15)
    assert {len(a.owned), len(b.owned)} == {5, 6}
    b.leave()
    assert [regex for regex, _ in group_of(stage).resolved.items()] == ["order.*"]
    a.more["subscribed_topic_regex"] = ""
    a.beat(full=True)
    assert not len(group_of(stage).resolved)
    settle(stage, [a], 3)
    assert not a.owned


def test_the_second_member_of_an_expression_needs_no_search(stage):
    a, b = (Client(stage, name, subscribed_topic_regex="orders") for name in "ab")
    a.beat()
    settle(stage, [a, b], 4)
    assert len(a.owned) == len(b.owned) == 3


# --- members' offset commits


def commit(stage, member_id, epoch, version=9):
    request = OffsetCommitRequest(group_id="g", member_id=member_id, generation_id_or_member_epoch=epoch)
    return stage.shard.consumers.check_commit(Asked(request, version), stage.now_ms, None)


def refused(call, *arguments):
    with pytest.raises(KafkaError) as caught:
        call(*arguments)
    return caught.value.code


def test_commits_are_checked_against_the_epoch(stage):
    a, b = Client(stage, "a", "orders"), Client(stage, "b", "orders")
    a.beat()
    settle(stage, [a, b], 4)
    orders = stage.image.topics["orders"].id
    assert commit(stage, "b", 3) is None
    assert refused(commit, stage, "b", 4) == ErrorCode.STALE_MEMBER_EPOCH
    assert refused(commit, stage, "nobody", 3) == ErrorCode.UNKNOWN_MEMBER_ID
    assert refused(commit, stage, "", -1) == ErrorCode.UNKNOWN_MEMBER_ID
    assert refused(commit, stage, "b", 3, 8) == ErrorCode.UNSUPPORTED_VERSION
    kept, other = (min(partition for _, partition in client.owned) for client in (a, b))
    check = commit(stage, "a", 2)
    check("orders", orders, kept)
    check("orders", ZERO_UUID, kept)
    assert refused(check, "orders", orders, other) == ErrorCode.STALE_MEMBER_EPOCH
    assert refused(check, "gone", ZERO_UUID, 0) == ErrorCode.STALE_MEMBER_EPOCH
    newer = commit(stage, "b", 2)
    assert refused(newer, "orders", orders, other) == ErrorCode.STALE_MEMBER_EPOCH, "it was not b's at epoch 2"


def test_a_tool_commits_for_an_empty_group_only(stage):
    a = Client(stage, "a", "orders")
    a.beat()
    assert refused(commit, stage, "", -1) == ErrorCode.UNKNOWN_MEMBER_ID
    a.leave()
    assert commit(stage, "", -1) is None


def test_fetches_are_checked_against_what_is_committed(stage):
    consumers = stage.shard.consumers
    Client(stage, "a", "orders").beat()
    consumers.check_fetch("g", None, -1)
    consumers.check_fetch("g", "a", 2)
    consumers.check_fetch("unknown", "a", 2)
    assert refused(consumers.check_fetch, "g", "a", 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert refused(consumers.check_fetch, "g", "b", 2) == ErrorCode.UNKNOWN_MEMBER_ID
    stage.journal.late = True
    heard = []
    joining = Client(stage, "b", "orders")
    stage.submit(joining.request(), lambda answer, error: heard.append(error or answer))
    assert not heard
    assert refused(consumers.check_fetch, "g", "b", 3) == ErrorCode.UNKNOWN_MEMBER_ID, "it is not committed yet"
    assert [member.member_id for member in describe(stage.shard, "g").members] == ["a"]
    stage.journal.commit()
    assert heard and len(describe(stage.shard, "g").members) == 2


def test_groups_are_listed_deleted_and_asked_about(stage):
    consumers = stage.shard.consumers
    a = Client(stage, "a", "orders")
    a.beat()
    [listed] = consumers.listed()
    assert (listed.group_id, listed.group_state, listed.group_type) == ("g", "Stable", "consumer")
    assert consumers.is_subscribed("g", "orders") and not consumers.is_subscribed("g", "clicks")
    assert refused(consumers.check_delete, "g") == ErrorCode.NON_EMPTY_GROUP
    a.leave()
    consumers.check_delete("g")
    assert refused(describe, stage.shard, "h") == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_group_that_is_deleted_leaves_nothing_to_load(stage):
    a = Client(stage, "a", subscribed_topic_regex="orders")
    a.beat()
    a.leave()
    stage.shard.undo.begin(len(stage.journal.written))

    class Emitting:
        def emit(self, record):
            stage.shard.apply(record, 0)
            stage.journal.written.append(encode_group_record(record))

    stage.shard.consumers.forget("g", Emitting())
    stage.shard.undo.end()
    stage.journal.commit()
    stage.move()
    assert not stage.shard.consumers.groups.items()
    newest = dict(stage.journal.written)
    assert not [key for key, value in newest.items() if value is not None], "every key has its tombstone"


# --- coordinator moves, and records of Kafka or newer versions


def test_a_new_coordinator_goes_on_in_the_middle_of_a_rebalance(stage):
    a, b = Client(stage, "a", "orders", instance_id="i"), Client(stage, "b", "orders")
    a.beat()
    b.beat()
    a.beat()
    before = dict(group_of(stage).members.items())
    assert before["a"].state is MemberState.UNREVOKED_PARTITIONS
    owners = dict(group_of(stage).owners.items())
    stage.move()
    assert dict(group_of(stage).members.items()) == before
    assert dict(group_of(stage).owners.items()) == owners
    assert group_of(stage).static["i"] == "a"
    b.beat()
    assert not b.owned
    a.beat()
    b.beat()
    assert len(b.owned) == 3


def test_a_new_coordinator_gives_everybody_a_session_and_no_more(stage):
    Client(stage, "a", "orders").beat()
    stage.pass_time(40_000)
    stage.move()
    stage.pass_time(44_999)
    assert "a" in group_of(stage).members
    stage.pass_time(1)
    assert "a" not in group_of(stage).members


def test_a_session_that_cannot_be_ended_now_ends_later(stage):
    Client(stage, "a", "orders").beat()
    stage.journal.refusal = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
    stage.pass_time(46_000)
    assert "a" in group_of(stage).members
    stage.journal.refusal = None
    stage.pass_time(1000)
    assert "a" not in group_of(stage).members


def test_members_of_a_newer_version_begin_again(stage):
    a = Client(stage, "a", "orders")
    a.beat()
    strange = stored.ConsumerGroupCurrentMemberAssignmentValue(member_epoch=2, previous_member_epoch=2, state=77)
    key = stored.ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="a")
    stage.journal.written.append(encode_group_record(GroupRecord(key, strange)))
    stage.journal.commit()
    stage.move()
    assert group_of(stage).members["a"].state is MemberState.UNKNOWN
    assert a.beat() and a.epoch == 0, "fenced"
    settle(stage, [a], 2)
    assert len(a.owned) == 6


def test_what_kafka_wrote_before_4_1_is_taken_away(stage):
    Client(stage, "a", "orders").beat()
    key = stored.ConsumerGroupPartitionMetadataKey(group_id="g")
    old = GroupRecord(key, stored.ConsumerGroupPartitionMetadataValue())
    stage.journal.written.append(encode_group_record(old))
    stage.journal.commit()
    stage.move()
    Client(stage, "b", "orders").beat()
    assert GroupRecord(key, None) in [decode_group_record(*record) for record in stage.journal.written]


def test_hashes_are_kafkas():
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
def test_xxh3(size, expected):
    assert xxh3_64(bytes((index * 7 + size) & 255 for index in range(size))) == expected

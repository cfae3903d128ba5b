"""ConsumerGroupHeartbeat: joining, staying, leaving and being removed."""

import pytest
from consumer_clients import REBALANCE_MS, Client, partitions, settle
from group_stage import GroupStage

from headrace.base.errors import ErrorCode, KafkaError
from headrace.coordinators.group.consumer.description import describe
from headrace.coordinators.group.consumer.members import MemberState
from headrace.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest as Request


@pytest.fixture
def stage():
    return GroupStage({"orders": 6, "clicks": 3}, group_consumer_assignment_interval_ms=0)


def refused(stage, code, **fields):
    request = Request(
        **{
            "group_id": "g",
            "member_id": "m",
            "rebalance_timeout_ms": 1000,
            "subscribed_topic_names": ["orders"],
            "topic_partitions": [],
        }
        | fields
    )
    with pytest.raises(KafkaError) as caught:
        stage.ask(request)
    assert caught.value.code == code
    return caught.value.message


def group_of(stage, name="g"):
    return stage.shard.consumers.groups[name]


def test_the_first_member_has_everything_at_once(stage):
    a = Client(stage, "a", "orders", "clicks")
    assert a.beat()
    assert len(a.owned) == 9
    assert a.epoch == 2
    assert a.interval_ms == 5000
    assert not a.beat(), "nothing new: no assignment is told"
    assert a.beat(full=True) is False and len(a.owned) == 9, "who asks for all is told all"
    assert describe(stage.shard, "g").group_state == "Stable"


def test_a_partition_is_given_out_after_its_owner_released_it(stage):
    a, b = Client(stage, "a", "orders"), Client(stage, "b", "orders")
    a.beat()
    had = set(a.owned)
    b.beat()
    assert b.epoch == 3 and not b.owned
    assert group_of(stage).members["b"].state is MemberState.UNRELEASED_PARTITIONS
    assert a.beat() and len(a.owned) == 3 and a.epoch == 2
    assert group_of(stage).members["a"].state is MemberState.UNREVOKED_PARTITIONS
    assert not b.beat(), "told to give up is not given up"
    assert describe(stage.shard, "g").group_state == "Reconciling"
    a.beat()
    assert a.epoch == 3
    assert b.beat()
    assert a.owned | b.owned == had and not a.owned & b.owned
    assert describe(stage.shard, "g").group_state == "Stable"


def test_epochs_of_partitions_say_since_when(stage):
    a, b = Client(stage, "a", "orders"), Client(stage, "b", "orders")
    a.beat()
    settle(stage, [a, b], 4)
    [epochs_of_a] = group_of(stage).members["a"].assigned.values()
    [epochs_of_b] = group_of(stage).members["b"].assigned.values()
    assert set(epochs_of_a.values()) == {2} and set(epochs_of_b.values()) == {3}


def test_whoever_leaves_is_forgotten(stage):
    a, b = Client(stage, "a", "orders"), Client(stage, "b", "orders")
    settle(stage, [a, b], 4)
    a.leave()
    settle(stage, [b], 2)
    assert len(b.owned) == 6
    assert set(dict(group_of(stage).targets.items())) == {"b"}
    b.leave()
    assert describe(stage.shard, "g").group_state == "Empty"
    assert not len(group_of(stage).owners) and not len(group_of(stage).subscriptions)


def test_silence_ends_a_session(stage):
    a, b = Client(stage, "a", "orders"), Client(stage, "b", "orders")
    settle(stage, [a, b], 4)
    for _ in range(5):
        stage.pass_time(10_000)
        b.beat()
    b.beat()
    assert len(b.owned) == 6
    assert a.beat() and a.epoch == 0, "it is told that it is not known, and begins again"


def test_a_group_has_a_session_timeout_of_its_own(stage):
    stage.set_topics(
        {"orders": 6}, {"g": {"consumer.session.timeout.ms": "7000", "consumer.heartbeat.interval.ms": "77"}}
    )
    a = Client(stage, "a", "orders")
    a.beat()
    assert a.interval_ms == 77
    stage.pass_time(6999)
    assert "a" in group_of(stage).members
    stage.pass_time(1)
    assert "a" not in group_of(stage).members


def test_who_does_not_revoke_in_time_is_thrown_out(stage):
    a, b = Client(stage, "a", "orders"), Client(stage, "b", "orders")
    a.beat()
    b.beat()
    a.beat()
    held = set(a.owned)
    a.owned = a.told  # keeps reporting that it owns everything
    for _ in range(REBALANCE_MS // 5000):
        stage.pass_time(5000)
        if "a" in group_of(stage).members:
            b.beat()
    assert "a" not in group_of(stage).members
    b.beat()
    assert len(b.owned) == 6 and held < b.owned


def test_an_answer_that_was_lost_changes_nothing(stage):
    a = Client(stage, "a", "orders")
    a.beat()
    stage.set_topics({"orders": 8})
    a.lose()
    assert group_of(stage).members["a"].epoch == 3 and a.epoch == 2
    assert a.beat(full=True), "the epoch before the last is accepted of who owns nothing else"
    assert a.epoch == 3 and len(a.owned) == 8


def test_wrong_epochs_are_fenced(stage):
    a = Client(stage, "a", "orders")
    a.beat()
    stage.set_topics({"orders": 8})
    a.beat()
    assert a.epoch == 3
    assert "greater" in refused(stage, ErrorCode.FENCED_MEMBER_EPOCH, member_id="a", member_epoch=4)
    foreign = Request.TopicPartitions(topic_id=bytes(16), partitions=[5])
    refused(stage, ErrorCode.FENCED_MEMBER_EPOCH, member_id="a", member_epoch=2, topic_partitions=[foreign])
    assert "smaller" in refused(
        stage, ErrorCode.FENCED_MEMBER_EPOCH, member_id="a", member_epoch=2, topic_partitions=None
    )
    stage.set_topics({"orders": 9})
    a.beat()
    refused(stage, ErrorCode.FENCED_MEMBER_EPOCH, member_id="a", member_epoch=2)


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (ErrorCode.INVALID_REQUEST, {"group_id": ""}),
        (ErrorCode.INVALID_REQUEST, {"member_id": ""}),
        (ErrorCode.INVALID_REQUEST, {"instance_id": ""}),
        (ErrorCode.INVALID_REQUEST, {"rack_id": ""}),
        (ErrorCode.INVALID_REQUEST, {"rebalance_timeout_ms": -1}),
        (ErrorCode.INVALID_REQUEST, {"topic_partitions": None}),
        (ErrorCode.INVALID_REQUEST, {"subscribed_topic_names": None}),
        (ErrorCode.INVALID_REQUEST, {"member_epoch": -3}),
        (ErrorCode.INVALID_REQUEST, {"member_epoch": -2}),
        (ErrorCode.UNSUPPORTED_ASSIGNOR, {"server_assignor": "best"}),
        (ErrorCode.INVALID_REGULAR_EXPRESSION, {"subscribed_topic_names": None, "subscribed_topic_regex": "a("}),
        (ErrorCode.GROUP_ID_NOT_FOUND, {"member_epoch": 4}),
        (ErrorCode.GROUP_ID_NOT_FOUND, {"member_epoch": -1}),
        (ErrorCode.GROUP_ID_NOT_FOUND, {"member_epoch": -2, "instance_id": "i"}),
    ],
)
def test_bad_requests_leave_nothing_behind(stage, code, fields):
    refused(stage, code, **fields)
    assert not stage.journal.written
    assert not stage.shard.consumers.groups.items()


def test_unknown_members_are_told_so(stage):
    Client(stage, "a", "orders", instance_id="i").beat()
    refused(stage, ErrorCode.UNKNOWN_MEMBER_ID, member_id="b", member_epoch=1)
    refused(stage, ErrorCode.UNKNOWN_MEMBER_ID, member_id="b", member_epoch=-1)
    refused(stage, ErrorCode.UNKNOWN_MEMBER_ID, member_id="a", member_epoch=-1, instance_id="j")
    refused(stage, ErrorCode.FENCED_INSTANCE_ID, member_id="b", member_epoch=-2, instance_id="i")
    refused(stage, ErrorCode.FENCED_INSTANCE_ID, member_id="b", member_epoch=1, instance_id="i")


def test_members_of_version_0_are_given_an_id(stage):
    request = Request(group_id="g", rebalance_timeout_ms=1000, subscribed_topic_names=["orders"], topic_partitions=[])
    answer = stage.ask(request, version=0)
    assert len(answer.member_id) == 22 and answer.member_id in group_of(stage).members


def test_a_static_member_comes_back_to_what_it_had(stage):
    a, b = Client(stage, "a", "orders", instance_id="i"), Client(stage, "b", "orders")
    settle(stage, [a, b], 4)
    had, epoch = set(a.owned), group_of(stage).epochs.group
    refused(stage, ErrorCode.UNRELEASED_INSTANCE_ID, member_id="c", instance_id="i")
    a.leave(-2)
    assert group_of(stage).members["a"].epoch == -2
    b.beat()
    assert not b.owned & had
    c = Client(stage, "c", "orders", instance_id="i")
    c.beat()
    assert c.owned == had
    assert group_of(stage).epochs.group == epoch, "nobody else has to move"
    assert "a" not in group_of(stage).members


def test_a_static_member_that_does_not_come_back_is_gone_with_its_session(stage):
    a, b = Client(stage, "a", "orders", instance_id="i"), Client(stage, "b", "orders")
    settle(stage, [a, b], 4)
    a.leave(-2)
    for _ in range(5):
        stage.pass_time(10_000)
        b.beat()
    settle(stage, [b], 2)
    assert len(b.owned) == 6


def test_a_full_group_takes_no_more():
    stage = GroupStage({"orders": 6}, group_consumer_max_size=1)
    Client(stage, "a", "orders").beat()
    refused(stage, ErrorCode.GROUP_MAX_SIZE_REACHED, member_id="b")
    Client(stage, "a", "orders").beat()


def test_topics_that_come_go_and_grow(stage):
    a, b = Client(stage, "a", "orders", "late"), Client(stage, "b", "orders", "late")
    settle(stage, [a, b], 4)
    assert len(a.owned | b.owned) == 6
    for topics, count in (({"orders": 6, "late": 4}, 10), ({"orders": 8, "late": 4}, 12), ({"late": 4}, 4), ({}, 0)):
        stage.set_topics(topics)
        settle(stage, [a, b], 5)
        assert len(a.owned | b.owned) == count and not a.owned & b.owned
        assert abs(len(a.owned) - len(b.owned)) < 2
        assert describe(stage.shard, "g").group_state == "Stable"


def test_a_topic_made_anew_is_another_topic(stage):
    a = Client(stage, "a", "orders")
    a.beat()
    had = set(a.owned)
    stage.set_topics({"orders": (6, 12345)})
    settle(stage, [a], 3)
    assert len(a.owned) == 6 and not a.owned & had


def test_metadata_that_does_not_concern_the_group_changes_nothing(stage):
    a = Client(stage, "a", "orders")
    a.beat()
    written = len(stage.journal.written)
    stage.set_topics({"orders": 6, "clicks": 3, "others": 9})
    a.beat()
    assert len(stage.journal.written) == written


def test_another_subscription_lets_go_at_once(stage):
    stage.settings = stage.shard.settings
    a = Client(stage, "a", "orders", "clicks")
    a.beat()
    assert a.subscribe("clicks") and len(a.owned) == 3
    settle(stage, [a], 2)
    assert len(a.owned) == 3 and a.epoch == 3


def test_members_with_different_subscriptions(stage):
    a, b = Client(stage, "a", "orders"), Client(stage, "b", "orders", "clicks")
    settle(stage, [a, b], 6)
    assert len(a.owned | b.owned) == 9 and not a.owned & b.owned
    assert {len(a.owned), len(b.owned)} == {4, 5}


def test_most_votes_choose_the_assignor(stage):
    a = Client(stage, "a", "orders", "clicks", server_assignor="range")
    b = Client(stage, "b", "orders", "clicks", server_assignor="range")
    c = Client(stage, "c", "orders", "clicks", server_assignor="uniform")
    settle(stage, [a, b, c], 6)
    assert describe(stage.shard, "g").assignor_name == "range"
    orders = stage.image.topics["orders"].id
    assert [sorted(p for t, p in client.owned if t == orders) for client in (a, b, c)] == [[0, 1], [2, 3], [4, 5]]
    a.leave()
    b.leave()
    settle(stage, [c], 2)
    assert describe(stage.shard, "g").assignor_name == "uniform"


def test_assignments_are_not_made_more_often_than_the_interval():
    stage = GroupStage({"orders": 6}, group_consumer_assignment_interval_ms=1000)
    a, b, c = (Client(stage, name, "orders") for name in "abc")
    a.beat()
    stage.pass_time(300)
    b.beat()
    c.beat()
    assert group_of(stage).epochs.group == 4 and group_of(stage).epochs.assignment == 2
    assert describe(stage.shard, "g").group_state == "Assigning"
    assert b.epoch == 2 and not b.owned
    stage.pass_time(700)
    settle(stage, [a, b, c], 4)
    assert group_of(stage).epochs.assignment == 4, "one assignment for both"
    assert [len(client.owned) for client in (a, b, c)] == [2, 2, 2]


def test_what_is_owned_is_told_in_full(stage):
    a = Client(stage, "a", "orders")
    a.beat()
    [topics] = partitions(a.owned)
    assert topics.topic_id == stage.image.topics["orders"].id and topics.partitions == [0, 1, 2, 3, 4, 5]

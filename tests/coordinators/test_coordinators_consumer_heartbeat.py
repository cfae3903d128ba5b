"""ConsumerGroupHeartbeat: joining, staying, leaving and being removed."""

from __future__ import annotations

from typing import Any

import pytest
from tests.coordinators.consumer_clients import REBALANCE_MS, Client, partitions, settle
from tests.coordinators.group_harness import GroupHarness

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import Uuid
from headrace.coordinators.group.consumer.description import describe
from headrace.coordinators.group.consumer.groups import ConsumerGroup
from headrace.coordinators.group.consumer.members import MemberState
from headrace.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest as Request


@pytest.fixture
def harness() -> GroupHarness:
    return GroupHarness({"orders": 6, "clicks": 3}, group_consumer_assignment_interval_ms=0)


def refused(harness: GroupHarness, code: ErrorCode, **fields: Any) -> str:
    defaults: dict[str, Any] = {
        "group_id": "g",
        "member_id": "m",
        "rebalance_timeout_ms": 1000,
        "subscribed_topic_names": ["orders"],
        "topic_partitions": [],
    }
    request = Request(**defaults | fields)
    with pytest.raises(KafkaError) as caught:
        harness.execute(request)
    assert caught.value.code == code
    return caught.value.message


def group_of(harness: GroupHarness, name: str = "g") -> ConsumerGroup:
    return harness.shard.consumers.groups[name]


def test_the_first_member_is_assigned_all_partitions_at_once(harness: GroupHarness) -> None:
    a = Client(harness, "a", "orders", "clicks")
    assert a.beat()
    assert len(a.owned) == 9
    assert a.epoch == 2
    assert a.interval_ms == 5000
    assert not a.beat(), "nothing new: no assignment is told"
    assert a.beat(full=True) is False and len(a.owned) == 9, "who asks for all is told all"
    assert describe(harness.shard, "g").group_state == "Stable"


def test_a_partition_is_assigned_only_after_its_owner_revoked_it(harness: GroupHarness) -> None:
    a, b = Client(harness, "a", "orders"), Client(harness, "b", "orders")
    a.beat()
    had = set(a.owned)
    b.beat()
    assert b.epoch == 3 and not b.owned
    assert group_of(harness).members["b"].state is MemberState.UNRELEASED_PARTITIONS
    assert a.beat() and len(a.owned) == 3 and a.epoch == 2
    assert group_of(harness).members["a"].state is MemberState.UNREVOKED_PARTITIONS
    assert not b.beat(), "told to give up is not given up"
    assert describe(harness.shard, "g").group_state == "Reconciling"
    a.beat()
    assert a.epoch == 3
    assert b.beat()
    assert a.owned | b.owned == had and not a.owned & b.owned
    assert describe(harness.shard, "g").group_state == "Stable"


def test_assigned_partitions_record_the_epoch_of_their_assignment(harness: GroupHarness) -> None:
    a, b = Client(harness, "a", "orders"), Client(harness, "b", "orders")
    a.beat()
    settle(harness, [a, b], 4)
    [epochs_of_a] = group_of(harness).members["a"].assigned.values()
    [epochs_of_b] = group_of(harness).members["b"].assigned.values()
    assert set(epochs_of_a.values()) == {2} and set(epochs_of_b.values()) == {3}


def test_leaving_removes_all_state_of_a_member(harness: GroupHarness) -> None:
    a, b = Client(harness, "a", "orders"), Client(harness, "b", "orders")
    settle(harness, [a, b], 4)
    a.leave()
    settle(harness, [b], 2)
    assert len(b.owned) == 6
    assert set(dict(group_of(harness).targets.items())) == {"b"}
    b.leave()
    assert describe(harness.shard, "g").group_state == "Empty"
    assert not len(group_of(harness).owners) and not len(group_of(harness).subscriptions)


def test_a_silent_member_is_removed_when_its_session_expires(harness: GroupHarness) -> None:
    a, b = Client(harness, "a", "orders"), Client(harness, "b", "orders")
    settle(harness, [a, b], 4)
    for _ in range(5):
        harness.pass_time(10_000)
        b.beat()
    b.beat()
    assert len(b.owned) == 6
    assert a.beat() and a.epoch == 0, "it is told that it is not known, and begins again"


def test_group_configs_override_session_timeout_and_heartbeat_interval(harness: GroupHarness) -> None:
    harness.set_topics(
        {"orders": 6}, {"g": {"consumer.session.timeout.ms": "7000", "consumer.heartbeat.interval.ms": "77"}}
    )
    a = Client(harness, "a", "orders")
    a.beat()
    assert a.interval_ms == 77
    harness.pass_time(6999)
    assert "a" in group_of(harness).members
    harness.pass_time(1)
    assert "a" not in group_of(harness).members


def test_a_member_that_exceeds_the_rebalance_timeout_while_revoking_is_removed(harness: GroupHarness) -> None:
    a, b = Client(harness, "a", "orders"), Client(harness, "b", "orders")
    a.beat()
    b.beat()
    a.beat()
    held = set(a.owned)
    a.owned = a.reported  # keeps reporting that it owns everything
    for _ in range(REBALANCE_MS // 5000):
        harness.pass_time(5000)
        if "a" in group_of(harness).members:
            b.beat()
    assert "a" not in group_of(harness).members
    b.beat()
    assert len(b.owned) == 6 and held < b.owned


def test_the_previous_epoch_is_accepted_after_a_lost_response(harness: GroupHarness) -> None:
    a = Client(harness, "a", "orders")
    a.beat()
    harness.set_topics({"orders": 8})
    a.lose()
    assert group_of(harness).members["a"].epoch == 3 and a.epoch == 2
    assert a.beat(full=True), "the epoch before the last is accepted of who owns nothing else"
    assert a.epoch == 3 and len(a.owned) == 8


def test_wrong_member_epochs_are_fenced(harness: GroupHarness) -> None:
    a = Client(harness, "a", "orders")
    a.beat()
    harness.set_topics({"orders": 8})
    a.beat()
    assert a.epoch == 3
    assert "greater" in refused(harness, ErrorCode.FENCED_MEMBER_EPOCH, member_id="a", member_epoch=4)
    foreign = Request.TopicPartitions(topic_id=Uuid(bytes(16)), partitions=[5])
    refused(harness, ErrorCode.FENCED_MEMBER_EPOCH, member_id="a", member_epoch=2, topic_partitions=[foreign])
    assert "smaller" in refused(
        harness, ErrorCode.FENCED_MEMBER_EPOCH, member_id="a", member_epoch=2, topic_partitions=None
    )
    harness.set_topics({"orders": 9})
    a.beat()
    refused(harness, ErrorCode.FENCED_MEMBER_EPOCH, member_id="a", member_epoch=2)


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
def test_invalid_requests_change_no_state(harness: GroupHarness, code: ErrorCode, fields: dict[str, Any]) -> None:
    refused(harness, code, **fields)
    assert not harness.journal.written
    assert not harness.shard.consumers.groups.items()


def test_unknown_members_and_wrong_instance_ids_are_refused(harness: GroupHarness) -> None:
    Client(harness, "a", "orders", instance_id="i").beat()
    refused(harness, ErrorCode.UNKNOWN_MEMBER_ID, member_id="b", member_epoch=1)
    refused(harness, ErrorCode.UNKNOWN_MEMBER_ID, member_id="b", member_epoch=-1)
    refused(harness, ErrorCode.UNKNOWN_MEMBER_ID, member_id="a", member_epoch=-1, instance_id="j")
    refused(harness, ErrorCode.FENCED_INSTANCE_ID, member_id="b", member_epoch=-2, instance_id="i")
    refused(harness, ErrorCode.FENCED_INSTANCE_ID, member_id="b", member_epoch=1, instance_id="i")


def test_version_0_members_get_a_generated_member_id(harness: GroupHarness) -> None:
    request = Request(group_id="g", rebalance_timeout_ms=1000, subscribed_topic_names=["orders"], topic_partitions=[])
    response = harness.execute(request, version=0)
    assert len(response.member_id) == 22 and response.member_id in group_of(harness).members


def test_a_returning_static_member_keeps_its_partitions(harness: GroupHarness) -> None:
    a, b = Client(harness, "a", "orders", instance_id="i"), Client(harness, "b", "orders")
    settle(harness, [a, b], 4)
    had, epoch = set(a.owned), group_of(harness).epochs.group
    refused(harness, ErrorCode.UNRELEASED_INSTANCE_ID, member_id="c", instance_id="i")
    a.leave(-2)
    assert group_of(harness).members["a"].epoch == -2
    b.beat()
    assert not b.owned & had
    c = Client(harness, "c", "orders", instance_id="i")
    c.beat()
    assert c.owned == had
    assert group_of(harness).epochs.group == epoch, "nobody else has to move"
    assert "a" not in group_of(harness).members


def test_a_static_member_that_does_not_return_is_removed_when_its_session_expires(harness: GroupHarness) -> None:
    a, b = Client(harness, "a", "orders", instance_id="i"), Client(harness, "b", "orders")
    settle(harness, [a, b], 4)
    a.leave(-2)
    for _ in range(5):
        harness.pass_time(10_000)
        b.beat()
    settle(harness, [b], 2)
    assert len(b.owned) == 6


def test_joining_a_full_group_fails_with_group_max_size_reached() -> None:
    harness = GroupHarness({"orders": 6}, group_consumer_max_size=1)
    Client(harness, "a", "orders").beat()
    refused(harness, ErrorCode.GROUP_MAX_SIZE_REACHED, member_id="b")
    Client(harness, "a", "orders").beat()


def test_created_grown_and_deleted_topics_are_reassigned(harness: GroupHarness) -> None:
    a, b = Client(harness, "a", "orders", "late"), Client(harness, "b", "orders", "late")
    settle(harness, [a, b], 4)
    assert len(a.owned | b.owned) == 6
    for topics, count in (({"orders": 6, "late": 4}, 10), ({"orders": 8, "late": 4}, 12), ({"late": 4}, 4), ({}, 0)):
        harness.set_topics(topics)
        settle(harness, [a, b], 5)
        assert len(a.owned | b.owned) == count and not a.owned & b.owned
        assert abs(len(a.owned) - len(b.owned)) < 2
        assert describe(harness.shard, "g").group_state == "Stable"


def test_a_recreated_topic_is_assigned_under_its_new_id(harness: GroupHarness) -> None:
    a = Client(harness, "a", "orders")
    a.beat()
    had = set(a.owned)
    harness.set_topics({"orders": (6, 12345)})
    settle(harness, [a], 3)
    assert len(a.owned) == 6 and not a.owned & had


def test_metadata_changes_of_unsubscribed_topics_write_no_records(harness: GroupHarness) -> None:
    a = Client(harness, "a", "orders")
    a.beat()
    written = len(harness.journal.written)
    harness.set_topics({"orders": 6, "clicks": 3, "others": 9})
    a.beat()
    assert len(harness.journal.written) == written


def test_partitions_of_unsubscribed_topics_are_revoked_at_once(harness: GroupHarness) -> None:
    harness.settings = harness.shard.settings
    a = Client(harness, "a", "orders", "clicks")
    a.beat()
    assert a.subscribe("clicks") and len(a.owned) == 3
    settle(harness, [a], 2)
    assert len(a.owned) == 3 and a.epoch == 3


def test_members_with_different_subscriptions_are_balanced(harness: GroupHarness) -> None:
    a, b = Client(harness, "a", "orders"), Client(harness, "b", "orders", "clicks")
    settle(harness, [a, b], 6)
    assert len(a.owned | b.owned) == 9 and not a.owned & b.owned
    assert {len(a.owned), len(b.owned)} == {4, 5}


def test_the_assignor_with_the_most_votes_is_used(harness: GroupHarness) -> None:
    a = Client(harness, "a", "orders", "clicks", server_assignor="range")
    b = Client(harness, "b", "orders", "clicks", server_assignor="range")
    c = Client(harness, "c", "orders", "clicks", server_assignor="uniform")
    settle(harness, [a, b, c], 6)
    assert describe(harness.shard, "g").assignor_name == "range"
    orders = harness.image.topics["orders"].id
    assert [sorted(p for t, p in client.owned if t == orders) for client in (a, b, c)] == [[0, 1], [2, 3], [4, 5]]
    a.leave()
    b.leave()
    settle(harness, [c], 2)
    assert describe(harness.shard, "g").assignor_name == "uniform"


def test_assignments_are_computed_at_most_once_per_interval() -> None:
    harness = GroupHarness({"orders": 6}, group_consumer_assignment_interval_ms=1000)
    a, b, c = (Client(harness, name, "orders") for name in "abc")
    a.beat()
    harness.pass_time(300)
    b.beat()
    c.beat()
    assert group_of(harness).epochs.group == 4 and group_of(harness).epochs.assignment == 2
    assert describe(harness.shard, "g").group_state == "Assigning"
    assert b.epoch == 2 and not b.owned
    harness.pass_time(700)
    settle(harness, [a, b, c], 4)
    assert group_of(harness).epochs.assignment == 4, "one assignment for both"
    assert [len(client.owned) for client in (a, b, c)] == [2, 2, 2]


def test_a_single_member_owns_every_partition_by_topic_id(harness: GroupHarness) -> None:
    a = Client(harness, "a", "orders")
    a.beat()
    [topics] = partitions(a.owned)
    assert topics.topic_id == harness.image.topics["orders"].id and topics.partitions == [0, 1, 2, 3, 4, 5]

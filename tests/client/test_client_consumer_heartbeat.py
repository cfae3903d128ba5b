"""KIP-848 heartbeats carry only changes, or the full state if a response was lost."""

from __future__ import annotations

from typing import Any

from headrace.base.ids import TopicPartition, Uuid
from headrace.client.consumer.options import CONSUMER_OPTIONS
from headrace.client.group.consumer_heartbeat import LEAVING, Heartbeats
from headrace.client.group.membership import Subscription
from headrace.client.group.settings import group_settings
from headrace.client.wire.opening import client_values
from headrace.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest

ONE, TWO = Uuid(b"1" * 16), Uuid(b"2" * 16)
TOPICS = Subscription(frozenset({"b", "a"}))


def heartbeats(**more: Any) -> Heartbeats:
    given = {"group.id": "g", "client.rack": "here", "max.poll.interval.ms": 1234, **more}
    return Heartbeats(group_settings(client_values(given, CONSUMER_OPTIONS)))


def sent_fields(
    request: ConsumerGroupHeartbeatRequest,
) -> tuple[int, str | None, list[str] | None, str | None, list[tuple[bytes, list[Any]]] | None]:
    """Return the fields of a request other than the member's identity."""
    owned = request.topic_partitions
    return (
        request.rebalance_timeout_ms,
        request.rack_id,
        request.subscribed_topic_names,
        request.subscribed_topic_regex,
        None if owned is None else [(one.topic_id, one.partitions) for one in owned],
    )


def test_the_first_heartbeat_carries_the_full_state_and_the_next_only_the_identity() -> None:
    beats = heartbeats()
    first = beats.next("m", 0, TOPICS, {})
    assert (first.group_id, first.member_id, first.member_epoch) == ("g", "m", 0)
    assert sent_fields(first) == (1234, "here", ["a", "b"], None, [])
    assert sent_fields(beats.next("m", 5, TOPICS, {})) == (-1, None, None, None, None)


def test_owned_partitions_are_sent_only_when_they_change() -> None:
    beats = heartbeats()
    beats.next("m", 0, TOPICS, {})
    owned = {TopicPartition("a", 2): ONE, TopicPartition("a", 0): ONE, TopicPartition("b", 1): TWO}
    assert sent_fields(beats.next("m", 5, TOPICS, owned))[4] == [(ONE, [0, 2]), (TWO, [1])]
    assert sent_fields(beats.next("m", 5, TOPICS, owned))[4] is None
    assert sent_fields(beats.next("m", 5, TOPICS, {}))[4] == []


def test_a_recreated_topic_counts_as_a_change_of_owned_partitions() -> None:
    beats = heartbeats()
    beats.next("m", 5, TOPICS, {TopicPartition("a", 0): ONE})
    assert sent_fields(beats.next("m", 5, TOPICS, {TopicPartition("a", 0): TWO}))[4] == [(TWO, [0])]


def test_switching_between_topic_names_and_a_pattern_clears_the_other() -> None:
    beats = heartbeats()
    beats.next("m", 0, TOPICS, {})
    assert sent_fields(beats.next("m", 5, Subscription(pattern="a.*"), {}))[2:4] == ([], "a.*")
    assert sent_fields(beats.next("m", 5, TOPICS, {}))[2:4] == (["a", "b"], "")


def test_the_full_state_is_sent_again_after_a_lost_response() -> None:
    beats = heartbeats()
    owned = {TopicPartition("a", 0): ONE}
    beats.next("m", 0, TOPICS, {})
    beats.next("m", 5, TOPICS, owned)
    beats.forget()
    assert sent_fields(beats.next("m", 5, TOPICS, owned)) == (1234, "here", ["a", "b"], None, [(ONE, [0])])


def test_the_last_heartbeat_carries_only_the_identity_and_the_leave_epoch() -> None:
    request = heartbeats(**{"group.instance.id": "i"}).last("m", LEAVING)
    assert (request.member_id, request.member_epoch, request.instance_id) == ("m", LEAVING, "i")
    assert sent_fields(request) == (-1, None, None, None, None)

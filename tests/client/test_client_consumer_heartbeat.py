"""KIP-848 heartbeats carry only changes, or the full state if a response was lost."""

from __future__ import annotations

from headrace.base.ids import TopicPartition, Uuid
from headrace.client.consumer.options import CONSUMER_OPTIONS
from headrace.client.group.consumer_heartbeat import LEAVING, Heartbeats
from headrace.client.group.membership import Subscription
from headrace.client.group.settings import group_settings
from headrace.client.wire.opening import client_values

ONE, TWO = Uuid(b"1" * 16), Uuid(b"2" * 16)
TOPICS = Subscription(frozenset({"b", "a"}))


def heartbeats(**more):
    given = {"group.id": "g", "client.rack": "here", "max.poll.interval.ms": 1234, **more}
    return Heartbeats(group_settings(client_values(given, CONSUMER_OPTIONS)))


def told(request):
    """Return the fields of a request other than the member's identity."""
    owned = request.topic_partitions
    return (
        request.rebalance_timeout_ms,
        request.rack_id,
        request.subscribed_topic_names,
        request.subscribed_topic_regex,
        None if owned is None else [(one.topic_id, one.partitions) for one in owned],
    )


def test_a_member_that_joins_tells_everything_and_then_only_that_it_lives():
    beats = heartbeats()
    first = beats.next("m", 0, TOPICS, {})
    assert (first.group_id, first.member_id, first.member_epoch) == ("g", "m", 0)
    assert told(first) == (1234, "here", ["a", "b"], None, [])
    assert told(beats.next("m", 5, TOPICS, {})) == (-1, None, None, None, None)


def test_what_it_owns_is_told_when_it_changes():
    beats = heartbeats()
    beats.next("m", 0, TOPICS, {})
    owned = {TopicPartition("a", 2): ONE, TopicPartition("a", 0): ONE, TopicPartition("b", 1): TWO}
    assert told(beats.next("m", 5, TOPICS, owned))[4] == [(ONE, [0, 2]), (TWO, [1])]
    assert told(beats.next("m", 5, TOPICS, owned))[4] is None
    assert told(beats.next("m", 5, TOPICS, {}))[4] == []


def test_a_topic_made_again_is_another():
    beats = heartbeats()
    beats.next("m", 5, TOPICS, {TopicPartition("a", 0): ONE})
    assert told(beats.next("m", 5, TOPICS, {TopicPartition("a", 0): TWO}))[4] == [(TWO, [0])]


def test_from_names_to_a_pattern_and_back():
    beats = heartbeats()
    beats.next("m", 0, TOPICS, {})
    assert told(beats.next("m", 5, Subscription(pattern="a.*"), {}))[2:4] == ([], "a.*")
    assert told(beats.next("m", 5, TOPICS, {}))[2:4] == (["a", "b"], "")


def test_one_that_was_not_heard_is_told_again_in_full():
    beats = heartbeats()
    owned = {TopicPartition("a", 0): ONE}
    beats.next("m", 0, TOPICS, {})
    beats.next("m", 5, TOPICS, owned)
    beats.forget()
    assert told(beats.next("m", 5, TOPICS, owned)) == (1234, "here", ["a", "b"], None, [(ONE, [0])])


def test_the_last_one():
    request = heartbeats(**{"group.instance.id": "i"}).last("m", LEAVING)
    assert (request.member_id, request.member_epoch, request.instance_id) == ("m", LEAVING, "i")
    assert told(request) == (-1, None, None, None, None)

"""The encodings that members of classic groups exchange."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.base.ids import TopicPartition
from headrace.client.group.classic_protocol import (
    Subscribed,
    decode_assignment,
    decode_generation,
    decode_sticky_data,
    decode_subscription,
    encode_assignment,
    encode_generation,
    encode_sticky_data,
    encode_subscription,
)
from headrace.protocol.errors import DecodeError

NAMES = st.text("abc", min_size=1, max_size=5)
PARTITIONS = st.lists(st.builds(TopicPartition, NAMES, st.integers(0, 9)), unique=True, max_size=6)


@given(st.frozensets(NAMES), PARTITIONS, st.integers(-1, 99), st.none() | NAMES, st.binary(max_size=9))
def test_a_subscription_comes_back(topics, owned, generation, rack, user_data):
    told = Subscribed(topics, tuple(sorted(owned)), generation, rack, None, user_data)
    assert decode_subscription(encode_subscription(told)) == told


@given(PARTITIONS)
def test_an_assignment_comes_back(partitions):
    assert decode_assignment(encode_assignment(partitions)) == frozenset(partitions)


@given(PARTITIONS, st.integers(-1, 99))
def test_sticky_data_comes_back(partitions, generation):
    assert decode_sticky_data(encode_sticky_data(partitions, generation)) == (sorted(partitions), generation)


def test_sticky_data_of_before_generations():
    assert decode_sticky_data(encode_sticky_data([TopicPartition("a", 1)], 5)[:-4]) == ([TopicPartition("a", 1)], -1)


def test_a_version_to_come_begins_like_the_newest():
    told = Subscribed(frozenset({"a"}), (TopicPartition("a", 1),), 3, "rack")
    later = b"\x00\x09" + encode_subscription(told)[2:] + b"more"
    assert decode_subscription(later) == told
    assert decode_assignment(b"\x00\x09" + encode_assignment([TopicPartition("a", 1)])[2:]) == {TopicPartition("a", 1)}


def test_no_assignment_is_nothing():
    assert decode_assignment(b"") == frozenset()


@given(st.binary(max_size=40))
def test_garbage_is_refused_by_name(data):
    for decode in (decode_subscription, decode_assignment):
        with contextlib.suppress(DecodeError):
            decode(data)
    decode_sticky_data(data)
    decode_generation(data)


@pytest.mark.parametrize("data", [b"\x00", b"\xff\xff\x00\x00\x00\x00"])
def test_a_version_that_there_is_not(data):
    with pytest.raises(DecodeError, match="ConsumerProtocolSubscription"):
        decode_subscription(data)


def test_a_generation_comes_back():
    assert decode_generation(encode_generation(7)) == 7
    assert decode_generation(b"") == -1

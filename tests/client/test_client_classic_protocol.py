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
def test_subscriptions_round_trip(
    topics: frozenset[str], owned: list[TopicPartition], generation: int, rack: str | None, user_data: bytes
) -> None:
    subscription = Subscribed(topics, tuple(sorted(owned)), generation, rack, None, user_data)
    assert decode_subscription(encode_subscription(subscription)) == subscription


@given(PARTITIONS)
def test_assignments_round_trip(partitions: list[TopicPartition]) -> None:
    assert decode_assignment(encode_assignment(partitions)) == frozenset(partitions)


@given(PARTITIONS, st.integers(-1, 99))
def test_sticky_data_round_trips(partitions: list[TopicPartition], generation: int) -> None:
    assert decode_sticky_data(encode_sticky_data(partitions, generation)) == (sorted(partitions), generation)


def test_sticky_data_without_a_generation_decodes_to_generation_minus_1() -> None:
    assert decode_sticky_data(encode_sticky_data([TopicPartition("a", 1)], 5)[:-4]) == ([TopicPartition("a", 1)], -1)


def test_newer_versions_are_decoded_like_the_newest_known_one() -> None:
    subscription = Subscribed(frozenset({"a"}), (TopicPartition("a", 1),), 3, "rack")
    later = b"\x00\x09" + encode_subscription(subscription)[2:] + b"more"
    assert decode_subscription(later) == subscription
    assert decode_assignment(b"\x00\x09" + encode_assignment([TopicPartition("a", 1)])[2:]) == {TopicPartition("a", 1)}


def test_an_empty_assignment_decodes_to_no_partitions() -> None:
    assert decode_assignment(b"") == frozenset()


@given(st.binary(max_size=40))
def test_garbage_raises_nothing_but_decode_error(data: bytes) -> None:
    for decode in (decode_subscription, decode_assignment):
        with contextlib.suppress(DecodeError):
            decode(data)
    decode_sticky_data(data)
    decode_generation(data)


@pytest.mark.parametrize("data", [b"\x00", b"\xff\xff\x00\x00\x00\x00"])
def test_a_truncated_or_negative_version_raises_decode_error(data: bytes) -> None:
    with pytest.raises(DecodeError, match="ConsumerProtocolSubscription"):
        decode_subscription(data)


def test_generations_round_trip() -> None:
    assert decode_generation(encode_generation(7)) == 7
    assert decode_generation(b"") == -1

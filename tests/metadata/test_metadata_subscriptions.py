"""Subscriptions to client metrics: which clients a `match` includes, and the error texts for invalid ones."""

from __future__ import annotations

import pytest

from headrace.base.errors import ErrorCode, KafkaError
from headrace.metadata.subscriptions import read_subscription


def test_a_client_must_fully_match_every_pattern() -> None:
    subscription = read_subscription({"match": "client_id=app-[0-9]+, client_software_name=(?i)APACHE.*"})
    assert subscription.includes({"client_id": ("app-17",), "client_software_name": ("apache-kafka-java",)})
    assert not subscription.includes({"client_id": ("app-17x",), "client_software_name": ("apache-kafka-java",)})
    assert not subscription.includes({"client_id": ("app-17",)})


@pytest.mark.parametrize(
    "pattern", ["client_id=[", "client_id=(a", "client_id=a)", "client_id=*", "client_id=\\", "nobody=a"]
)
def test_invalid_match_patterns_are_refused_with_kafkas_message(pattern: str) -> None:
    with pytest.raises(KafkaError) as refused:
        read_subscription({"match": pattern})
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    assert refused.value.message == f"Illegal client matching pattern: {pattern}"


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        (r"client_id=(a)\1", r"invalid escape sequence: \1"),
        ("client_id=(?!a).*", "invalid perl operator: (?!"),
        ("client_id=a++", "bad repetition operator: ++"),
        ("client_id=(a{1000}){1000}", "invalid repetition size: {1000}"),
        (r"client_id=\pL{1000}", "pattern too large - compile failed"),
    ],
)
def test_patterns_valid_only_in_java_are_refused_with_the_reason(pattern: str, reason: str) -> None:
    with pytest.raises(KafkaError) as refused:
        read_subscription({"match": pattern})
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    assert refused.value.message == f"Illegal client matching pattern: {pattern} ({reason})"

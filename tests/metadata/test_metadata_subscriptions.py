"""Subscriptions to client metrics: which clients a `match` includes, and the error texts for invalid ones."""

import pytest

from headrace.base.errors import ErrorCode, KafkaError
from headrace.metadata.subscriptions import read_subscription


def test_a_client_must_match_all_patterns_as_a_whole():
    subscription = read_subscription({"match": "client_id=app-[0-9]+, client_software_name=(?i)APACHE.*"})
    assert subscription.includes({"client_id": ("app-17",), "client_software_name": ("apache-kafka-java",)})
    assert not subscription.includes({"client_id": ("app-17x",), "client_software_name": ("apache-kafka-java",)})
    assert not subscription.includes({"client_id": ("app-17",)})


@pytest.mark.parametrize(
    "pattern", ["client_id=[", "client_id=(a", "client_id=a)", "client_id=*", "client_id=\\", "nobody=a"]
)
def test_what_no_engine_takes_is_refused_in_kafkas_words(pattern):
    with pytest.raises(KafkaError) as refused:
        read_subscription({"match": pattern})
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    assert refused.value.message == f"Illegal client matching pattern: {pattern}"


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"client_id=(a)\1", r"invalid escape sequence: \1"),
        ("client_id=(?!a).*", "invalid perl operator: (?!"),
        ("client_id=a++", "bad repetition operator: ++"),
        ("client_id=(a{1000}){1000}", "invalid repetition size: {1000}"),
        (r"client_id=\pL{1000}", "pattern too large - compile failed"),
    ],
)
def test_what_java_would_take_is_refused_with_the_reason(pattern, why):
    with pytest.raises(KafkaError) as refused:
        read_subscription({"match": pattern})
    assert refused.value.code is ErrorCode.INVALID_CONFIG
    assert refused.value.message == f"Illegal client matching pattern: {pattern} ({why})"

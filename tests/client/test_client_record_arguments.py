"""Arguments that `send` accepts."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.client.producer.record_arguments import check_record


def _check(topic: object = "t", value: object = b"v", key: object = None, **more: object) -> object:
    given = {"partition": None, "timestamp_ms": None, "headers": ()} | more
    return check_record(topic, value, key, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"topic": b"t"}, "topic must be a str, not bytes"),
        ({"value": "v"}, "value must be bytes or None, not str: encode it"),
        ({"value": bytearray(b"v")}, "value must be bytes or None, not bytearray"),
        ({"key": 5}, "key must be bytes or None, not int"),
        ({"partition": "0"}, "partition must be an int or None, not str"),
        ({"partition": True}, "partition must be an int or None, not bool"),
        ({"timestamp_ms": 1.5}, "timestamp_ms must be an int or None, not float"),
        ({"headers": [("name", "text")]}, "header 'name' must be bytes or None, not str"),
        ({"headers": [(b"name", b"x")]}, "the name of a header must be a str, not bytes"),
        ({"headers": {"name": b"x"}}, "headers must be pairs of a name and bytes or None, not 'name'"),
    ],
)
def test_wrong_argument_types_are_named_in_the_error(given: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        _check(**given)


@pytest.mark.parametrize(
    "given", [{"partition": -1}, {"partition": 2**31}, {"timestamp_ms": -1}, {"timestamp_ms": 2**63}]
)
def test_partitions_and_timestamps_out_of_range_raise_value_error(given: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be between 0 and"):
        _check(**given)


def test_headers_are_returned_as_a_tuple() -> None:
    assert _check(headers=iter([["a", b"1"], ("b", None)])) == (("a", b"1"), ("b", None))
    assert _check(value=None, key=b"k", partition=0, timestamp_ms=0) == ()

"""Round trips of every message in every version."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from testkit.strategies import every_codec, messages

from headrace.protocol.compiler import codec
from headrace.protocol.declare import Struct

CODECS = every_codec()


@pytest.mark.parametrize(("message", "version"), CODECS, ids=[f"{m.__name__}-{v}" for m, v in CODECS])
@settings(deadline=None, max_examples=5, database=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_every_message_round_trips_in_every_version(message: type[Struct], version: int, data: st.DataObject) -> None:
    value = data.draw(messages(message, version))
    one = codec(message, version)
    encoded = one.encode(value)
    assert one.decode_from(encoded, 0) == (value, len(encoded))
    assert b"".join(one.encode_parts(value)) == encoded  # type: ignore[arg-type]
    moved = memoryview(bytearray(b"\xff" * 3 + encoded + b"\xff" * 2))
    assert one.decode_from(moved, 3) == (value, 3 + len(encoded))


@pytest.mark.parametrize(("message", "version"), CODECS, ids=[f"{m.__name__}-{v}" for m, v in CODECS])
def test_default_messages_round_trip_in_every_version(message: type[Struct], version: int) -> None:
    assert codec(message, version).decode(codec(message, version).encode(message())) == message()

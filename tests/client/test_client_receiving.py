"""Splitting a stream that arrives in pieces of any size into responses."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.client.wire.frames import UnexpectedResponse
from headrace.client.wire.receiving import BUFFER_BYTES, RESPONSE_BYTES_MAX, FrameReceiver

SIZES = st.integers(4, 40) | st.sampled_from([BUFFER_BYTES - 4, BUFFER_BYTES - 3, BUFFER_BYTES, 3 * BUFFER_BYTES])


def feed(receiver: FrameReceiver, stream: bytes, pieces: list[int]) -> list[bytes]:
    frames: list[memoryview] = []
    position = 0
    pieces = pieces or [len(stream)]
    while position < len(stream):
        free_space = receiver.free_space()
        assert len(free_space) > 0
        count = min(len(free_space), pieces[position % len(pieces)], len(stream) - position)
        free_space[:count] = stream[position : position + count]
        frames += receiver.received(count)
        position += count
    return [bytes(frame) for frame in frames]


@given(st.lists(SIZES, max_size=6), st.lists(st.integers(1, 50) | st.integers(1, 2 * BUFFER_BYTES), max_size=5))
@settings(deadline=None, max_examples=60)
def test_frames_are_reassembled_from_pieces_of_any_size(sizes: list[int], pieces: list[int]) -> None:
    if sum(sizes) > BUFFER_BYTES:
        pieces = [piece for piece in pieces if piece > 1000]
    expected = [bytes([index + 1]) * size for index, size in enumerate(sizes)]
    stream = b"".join(len(frame).to_bytes(4, "big") + frame for frame in expected)
    assert feed(FrameReceiver(), stream, pieces) == expected


def test_a_large_frame_is_received_without_copying() -> None:
    receiver = FrameReceiver()
    size = 2 * BUFFER_BYTES
    assert feed(receiver, size.to_bytes(4, "big") + b"x" * 10, []) == []
    free_space = receiver.free_space()
    assert len(free_space) == size - 10
    free_space[:] = b"y" * (size - 10)
    (frame,) = receiver.received(size - 10)
    assert frame.obj is free_space.obj and bytes(frame) == b"x" * 10 + b"y" * (size - 10)
    assert len(receiver.free_space()) == BUFFER_BYTES


@pytest.mark.parametrize("size", [-1, 0, 3, RESPONSE_BYTES_MAX + 1])
def test_invalid_frame_sizes_raise_unexpected_answer(size: int) -> None:
    with pytest.raises(UnexpectedResponse, match=f"a response of {size} bytes; allowed are 4 to"):
        feed(FrameReceiver(), size.to_bytes(4, "big", signed=True), [])


def test_a_broker_that_speaks_tls_is_recognized() -> None:
    with pytest.raises(UnexpectedResponse, match=r"speaks TLS here: security\.protocol must be"):
        feed(FrameReceiver(), b"\x15\x03\x03\x00\x02\x02\x46", [])

"""Frames: every request and response is preceded by its size, an int32."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from headrace.protocol.errors import FrameError
from headrace.protocol.types import Buffer

SIZE = struct.Struct(">i")
FRAME_BYTES_MAX = 100 * 1024 * 1024  # Kafka's default for socket.request.max.bytes


def check_frame_size(size: int, limit: int = FRAME_BYTES_MAX) -> int:
    if not 0 <= size <= limit:
        raise FrameError(f"a frame of {size} bytes; the limit is {limit}")
    return size


def framed(parts: Iterable[Buffer]) -> list[Buffer]:
    """Return the parts preceded by their total size, without copying."""
    pieces = list(parts)
    return [SIZE.pack(sum(map(len, pieces))), *pieces]


class FrameSplitter:
    """Splits a byte stream into frames; keeps at most one incomplete frame between calls."""

    def __init__(self, limit: int = FRAME_BYTES_MAX) -> None:
        self._limit = limit
        self._held = bytearray()

    def feed(self, data: Buffer) -> list[bytes]:
        """Return the frames that are now complete, without their sizes. After a FrameError the stream is unusable."""
        self._held += data
        frames: list[bytes] = []
        position = 0
        while len(self._held) - position >= SIZE.size:
            size = check_frame_size(SIZE.unpack_from(self._held, position)[0], self._limit)
            end = position + SIZE.size + size
            if end > len(self._held):
                break
            frames.append(bytes(self._held[position + SIZE.size : end]))
            position = end
        del self._held[:position]
        return frames

"""Extracts response frames from a byte stream.

Small responses are copied out of a reused buffer. Larger or incomplete ones are received directly into their final
buffer, so that records are not copied.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct

from headrace.client.wire.frames import UnexpectedResponse
from headrace.records.kernel import reusable

RESPONSE_BYTES_MAX = 256 * 1024 * 1024
BUFFER_BYTES = 64 * 1024
_SIZE = Struct(">i")
_TLS_ALERT = b"\x15\x03"


class FrameReceiver:
    """Collects received bytes: fill `free_space` from its start, then call `received` to get the complete frames."""

    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._used = 0
        self._frame: memoryview | None = None  # frame being filled; None: the buffer is
        self._filled = 0

    def free_space(self) -> memoryview:
        """Return the free part of the current buffer; it is never empty."""
        return self._buffer[self._used :] if self._frame is None else self._frame[self._filled :]

    def received(self, count: int) -> Iterator[memoryview]:
        """Yield the complete frames without their sizes. Raise UnexpectedResponse if the stream is unusable."""
        if self._frame is not None:
            self._filled += count
            if self._filled == len(self._frame):
                frame, self._frame = self._frame, None
                yield frame
            return
        self._used += count
        position = 0
        while self._used - position >= _SIZE.size:
            size = self._size(position)
            begin = position + _SIZE.size
            if begin + size > self._used:
                self._begin(begin, size)
                return
            position = begin + size
            yield memoryview(bytes(self._buffer[begin:position]))
        rest = self._used - position
        if position and rest:
            self._buffer[:rest] = bytes(self._buffer[position : self._used])
        self._used = rest

    def _begin(self, begin: int, size: int) -> None:
        self._frame = reusable(size)
        self._filled = self._used - begin
        self._frame[: self._filled] = self._buffer[begin : self._used]
        self._used = 0

    def _size(self, position: int) -> int:
        (size,) = _SIZE.unpack_from(self._buffer, position)
        if self._buffer[position : position + 2] == _TLS_ALERT:
            raise UnexpectedResponse("the broker speaks TLS here: security.protocol must be SSL or SASL_SSL")
        if not 4 <= size <= RESPONSE_BYTES_MAX:
            raise UnexpectedResponse(f"a response of {size} bytes; allowed are 4 to {RESPONSE_BYTES_MAX}")
        assert isinstance(size, int)
        return size

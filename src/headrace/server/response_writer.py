"""The sending side of a connection: writes without a copy what the socket accepts, and the rest when it is writable.

A plain socket is written to directly while its transport has nothing to send. The transport's write limit is 0, so it pauses us as
soon as it holds a byte: "not paused" means "the transport is empty". With TLS everything goes through the transport in pieces.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque

from headrace.base.stored import Stored

Part = bytes | memoryview | Stored
ResponseParts = list[Part]

JOIN_MAX = 32 * 1024  # bytes up to which the parts of responses are joined into one send
WRITE_VECTOR_MAX = 64  # parts in one system call
WRITE_PIECE = 256 * 1024  # bytes passed at once to a transport without a plain socket; also its write limit
WAKE_PIECE = 64 * 1024  # bytes passed to a plain transport, which resumes us when the socket has accepted them
_CORK = getattr(socket, "TCP_CORK", None)


def joined(response: ResponseParts) -> bytes:
    return b"".join([part if isinstance(part, bytes | memoryview) else part.front(len(part)) for part in response])


class ResponseWriter:
    __slots__ = ("_descriptor", "_socket", "_transport", "_unsent", "paused")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._unsent: deque[Part] = deque()
        self.paused = False
        self._descriptor = -1
        self._socket = transport.get_extra_info("socket")
        if self._socket is not None and transport.get_extra_info("sslcontext") is None:
            self._descriptor = self._socket.fileno()
        transport.set_write_buffer_limits(high=WRITE_PIECE if self._descriptor < 0 else 0)

    def send(self, out: ResponseParts, size: int) -> None:
        if size <= JOIN_MAX and not self.paused and not self._unsent:
            first = out[0]
            self._send_small(first if type(first) is bytes and len(out) == 1 else joined(out))
            return
        self._unsent.extend(out)
        self.send_more()

    def _send_small(self, data: bytes | memoryview) -> None:
        if self._descriptor >= 0:
            try:
                sent = os.write(self._descriptor, data)
            except OSError:
                sent = 0  # full or closed: the transport finds out and reports it
            if sent == len(data):
                return
            data = data[sent:]
        self._transport.write(data)

    def send_more(self) -> None:
        """Send until the socket is full; raise OSError or ValueError if the announced records can no longer be read.

        The client cannot get an error then, because a part of the response is already sent.
        """
        while self._unsent and not self.paused:
            if self._descriptor < 0:
                self._transport.write(self._take(WRITE_PIECE))
            elif not self._send_directly():
                self._transport.write(self._take(WAKE_PIECE))

    def _send_directly(self) -> bool:
        """Write to the socket; return False if it is full (or closed, which the transport finds out)."""
        unsent = self._unsent
        # Cork to send full packets: the response's header alone would wake the client for a few bytes.
        corked = _CORK is not None and len(unsent) > 1
        if corked:
            self._socket.setsockopt(socket.IPPROTO_TCP, _CORK, 1)
        try:
            while unsent:
                if isinstance(unsent[0], bytes | memoryview):
                    sent, expected = self._write_vector()
                else:
                    expected = len(unsent[0])
                    sent = unsent[0].send_to(self._descriptor)
                    if sent == 0:
                        raise OSError("a file became shorter while it was being sent")
                    self._drop(sent)
                if sent < expected:
                    return False
        except (BlockingIOError, ConnectionError):
            return False
        finally:
            if corked and self._descriptor >= 0:
                self._socket.setsockopt(socket.IPPROTO_TCP, _CORK, 0)
        return True

    def _write_vector(self) -> tuple[int, int]:
        parts: list[bytes | memoryview] = []
        for part in self._unsent:
            if not isinstance(part, bytes | memoryview) or len(parts) == WRITE_VECTOR_MAX:
                break
            parts.append(part)
        sent = os.writev(self._descriptor, parts)
        self._drop(sent)
        return sent, sum(map(len, parts))

    def _drop(self, size: int) -> None:
        unsent = self._unsent
        while unsent and size >= len(unsent[0]):
            size -= len(unsent.popleft())
        if size:
            first = unsent[0]
            unsent[0] = memoryview(first)[size:] if isinstance(first, bytes | memoryview) else first.after(size)

    def _take(self, size: int) -> bytes | memoryview:
        first = self._unsent[0]
        data = memoryview(first)[:size] if isinstance(first, bytes | memoryview) else first.front(size)
        self._drop(len(data))
        return data

    def close(self) -> None:
        """Stop sending and forget the descriptor, which the transport may close from now on."""
        self._descriptor = -1
        self._unsent.clear()

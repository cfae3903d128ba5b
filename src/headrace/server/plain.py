"""The transport of a client socket without TLS, a drop-in replacement for asyncio's own."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace.server.readiness import AcceptedClient

LINGER_S_MAX = 10.0  # time that a closed connection has to send its last responses


class PlainTransport(asyncio.Transport):
    def __init__(
        self, client: AcceptedClient, protocol: asyncio.BufferedProtocol, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__({"socket": client.client_socket, "sockname": client.own, "peername": client.address})
        self._socket = client.client_socket
        self._receive = client.client_socket.recv_into
        self._descriptor = client.client_socket.fileno()
        self._protocol = protocol
        self._readiness = client.readiness
        self._loop = loop
        self._unsent = bytearray()
        self._high = 64 * 1024
        self._reading = True
        self._paused = False  # whether the protocol's pause_writing was called last
        self._closing = False
        self._readiness.add(self._descriptor, self)
        protocol.connection_made(self)

    # --- reading

    def readable(self) -> None:
        if self._closing or not self._reading:
            if not self._reading and not self._closing:
                self._end(None)  # while reading is paused, only errors and hang-ups are reported
            return
        try:
            received = self._receive(self._protocol.get_buffer(-1))
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error)
            return
        if received:
            self._protocol.buffer_updated(received)
        elif not self._protocol.eof_received():
            self.close()

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False
        self._watch()

    def resume_reading(self) -> None:
        self._reading = True
        self._watch()

    def _watch(self) -> None:
        if not self._closing or self._unsent:
            reading = self._reading and not self._closing
            self._readiness.watch(self._descriptor, reading=reading, writing=bool(self._unsent))

    # --- writing

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing:
            return
        if not self._unsent:
            try:
                sent = self._socket.send(data)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                self._end(error)
                return
            if sent == len(data):
                return
            data = memoryview(data)[sent:]
            self._unsent += data
            self._watch()
        else:
            self._unsent += data
        self._pause_if_full()

    def _pause_if_full(self) -> None:
        if len(self._unsent) > self._high and not self._paused:
            self._paused = True
            self._protocol.pause_writing()

    def writable(self) -> None:
        try:
            sent = self._socket.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error)
            return
        self._sent(sent)

    def _sent(self, count: int) -> None:
        del self._unsent[:count]
        if self._unsent:
            return
        if self._closing:
            self._end(None)
            return
        self._watch()
        if self._paused:
            self._paused = False
            self._protocol.resume_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the high limit. `low` is ignored: writing resumes when everything is sent."""
        self._high = self._high if high is None else high

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    # --- closing

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """Close after sending what was written; drop what is not sent within LINGER_S_MAX."""
        if self._closing:
            return
        self._closing = True
        if self._unsent:
            self._watch()
            self._loop.call_later(LINGER_S_MAX, self._end, None)
        else:
            self._end(None)

    def abort(self) -> None:
        self._end(None)

    def _end(self, error: OSError | None) -> None:
        self._closing = True
        self._unsent.clear()
        if self._descriptor >= 0:
            self._readiness.remove(self._descriptor)
            self._descriptor = -1
            self._loop.call_soon(self._lost, error)

    def _lost(self, error: OSError | None) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            self._socket.close()

    def get_protocol(self) -> Any:
        return self._protocol

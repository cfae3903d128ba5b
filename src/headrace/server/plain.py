"""Plain sockets on an event loop with a selector: one epoll for all clients of a listener, hung into the loop as one descriptor.

asyncio takes two microseconds a request for what happens between its selector and the protocol; with thousands of small requests
that is a tenth of the work. The protocols do not notice: `PlainTransport` is what asyncio's own transport is to them. Where there is
no epoll, on other loops (the simulator's, uvloop) and with TLS, asyncio's transports serve.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import select
import socket
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)

EVENTS_MAX = 64  # clients served in one turn of the loop; timers and others come between
ACCEPTS_MAX = 32  # new clients taken in one turn
LINGER_S_MAX = 10.0  # for which a closed connection waits until its client has taken the last answers
ACCEPT_PAUSE_S = 1.0  # after the process ran out of descriptors
_OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

ProtocolFactory = Callable[[], asyncio.BufferedProtocol]


def is_possible(loop: asyncio.AbstractEventLoop) -> bool:
    return hasattr(select, "epoll") and isinstance(loop, asyncio.SelectorEventLoop)


class PlainServer:
    """Bound by `open`; refuses clients until `start_serving`."""

    def __init__(
        self, sockets: list[socket.socket], factory: ProtocolFactory, backlog: int, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.sockets = sockets
        self._factory = factory
        self._backlog = backlog
        self._loop = loop
        self._readiness: Readiness | None = None

    @classmethod
    async def open(
        cls, factory: ProtocolFactory, host: str | None, port: int, backlog: int, loop: asyncio.AbstractEventLoop
    ) -> PlainServer:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        sockets: list[socket.socket] = []
        try:
            for family, kind, protocol, _, address in dict.fromkeys(found):
                one = socket.socket(family, kind, protocol)
                sockets.append(one)
                one.setblocking(False)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                if port == 0 and len(sockets) > 1:  # whichever port the first one got
                    address = (address[0], sockets[0].getsockname()[1], *address[2:])
                one.bind(address)
        except OSError:
            for one in sockets:
                one.close()
            raise
        return cls(sockets, factory, backlog, loop)

    async def start_serving(self) -> None:
        self._readiness = Readiness(self._loop)
        for one in self.sockets:
            one.listen(self._backlog)
            self._loop.add_reader(one.fileno(), self._accept, one)

    def _accept(self, listening: socket.socket) -> None:
        assert self._readiness is not None
        for _ in range(ACCEPTS_MAX):
            try:
                client, _address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_RESOURCES:
                    raise
                log.error("no client can be accepted for %.0f s: %s", ACCEPT_PAUSE_S, error.strerror)
                self._loop.remove_reader(listening.fileno())
                self._loop.call_later(ACCEPT_PAUSE_S, self._accept_again, listening)
                return
            try:
                client.setblocking(False)
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                PlainTransport(client, self._factory(), self._readiness, self._loop)
            except OSError:
                client.close()  # it left before it was let in

    def _accept_again(self, listening: socket.socket) -> None:
        if listening.fileno() >= 0:
            self._loop.add_reader(listening.fileno(), self._accept, listening)

    def close(self) -> None:
        """No new clients; those that are in stay until they go."""
        for one in self.sockets:
            if one.fileno() >= 0:
                self._loop.remove_reader(one.fileno())
                one.close()
        if self._readiness is not None:
            self._readiness.close_when_empty()


class Readiness:
    """Which clients can be read from or written to: an epoll inside the loop's selector."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll = select.epoll()
        self._poll = self._epoll.poll
        self._transports: dict[int, PlainTransport] = {}
        self._closing = False
        loop.add_reader(self._epoll.fileno(), self._ready)

    def _ready(self) -> None:
        transports = self._transports
        for descriptor, events in self._poll(0, EVENTS_MAX):
            transport = transports.get(descriptor)
            if transport is None:
                continue  # closed by what another one did in this very turn
            if events & select.EPOLLOUT:
                transport.writable()
            if events & ~select.EPOLLOUT:
                transport.readable()

    def add(self, descriptor: int, transport: PlainTransport) -> None:
        self._transports[descriptor] = transport
        self._epoll.register(descriptor, select.EPOLLIN)

    def watch(self, descriptor: int, events: int) -> None:
        self._epoll.modify(descriptor, events)

    def remove(self, descriptor: int) -> None:
        if self._transports.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)
        if self._closing:
            self.close_when_empty()

    def close_when_empty(self) -> None:
        self._closing = True
        if not self._transports and not self._epoll.closed:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()


class PlainTransport(asyncio.Transport):
    def __init__(
        self,
        client: socket.socket,
        protocol: asyncio.BufferedProtocol,
        readiness: Readiness,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__({"socket": client, "sockname": client.getsockname(), "peername": client.getpeername()})
        self._socket = client
        self._receive = client.recv_into
        self._descriptor = client.fileno()
        self._protocol = protocol
        self._readiness = readiness
        self._loop = loop
        self._unsent = bytearray()
        self._high = 64 * 1024
        self._reading = True
        self._paused = False  # whether the protocol was told not to write
        self._closing = False
        readiness.add(self._descriptor, self)
        protocol.connection_made(self)

    # --- in

    def readable(self) -> None:
        if self._closing or not self._reading:
            if not self._reading and not self._closing:
                self._end(None)  # an error or a hang-up: nothing else is reported while nobody reads
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
            events = select.EPOLLIN if self._reading and not self._closing else 0
            self._readiness.watch(self._descriptor, events | (select.EPOLLOUT if self._unsent else 0))

    # --- out

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
        del self._unsent[:sent]
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
        """The protocol goes on when all is sent, whatever `low` says."""
        self._high = self._high if high is None else high

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    # --- the end

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """What was written is sent first, if the client takes it soon."""
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

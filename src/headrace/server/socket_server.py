"""A listening socket: binds, and hands each client that comes to whoever makes a transport for it."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket

from headrace.server.readiness import Readiness, Take, make_readiness

log = logging.getLogger(__name__)

ACCEPTS_MAX = 32  # new clients taken in one turn
ACCEPT_PAUSE_S = 1.0  # after the process ran out of descriptors
_OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class SocketServer:
    """Bound by `open`; refuses clients until `start_serving`."""

    def __init__(self, sockets: list[socket.socket], take: Take, backlog: int, loop: asyncio.AbstractEventLoop) -> None:
        """`take` gets each client; OSError: it has left again."""
        self.sockets = sockets
        self._take = take
        self._backlog = backlog
        self._loop = loop
        self._readiness: Readiness | None = None

    @classmethod
    async def open(
        cls, take: Take, host: str | None, port: int, backlog: int, loop: asyncio.AbstractEventLoop
    ) -> SocketServer:
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
        return cls(sockets, take, backlog, loop)

    async def start_serving(self) -> None:
        self._readiness = make_readiness(self._loop)
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
                self._take(client, self._readiness)
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

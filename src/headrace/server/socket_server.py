"""Listening sockets: bind, accept, and pass each client to a callback that makes a transport for it."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from contextlib import suppress
from ipaddress import ip_address
from typing import NamedTuple

from headrace.server.readiness import AcceptedClient, Name, Readiness, Take, make_readiness

log = logging.getLogger(__name__)

ACCEPTS_MAX = 32  # clients accepted in one loop iteration
ACCEPT_PAUSE_S = 1.0  # pause after the process ran out of descriptors or memory
_CONGESTION = getattr(socket, "TCP_CONGESTION", None)
_OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class _ListeningSocket(NamedTuple):
    listening: socket.socket
    name: Name
    is_everywhere: bool  # bound to all addresses: only a client's socket knows which one it connected to
    is_loopback: bool


class SocketServer:
    """The listening sockets of one host and port: bound by `open`, refusing clients until `start_serving`.

    `take` is called with each client; an OSError from it means that the client has already disconnected.
    """

    def __init__(self, sockets: list[socket.socket], take: Take, backlog: int, loop: asyncio.AbstractEventLoop) -> None:
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
                if port == 0 and len(sockets) > 1:  # the port that the first socket got
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
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # inherited by client sockets
            name = one.getsockname()
            address = ip_address(name[0])
            if address.is_loopback:
                _send_at_once(one)
            one.listen(self._backlog)
            bound = _ListeningSocket(one, name, address.is_unspecified, address.is_loopback)
            self._loop.add_reader(one.fileno(), self._accept, bound)

    def _accept(self, bound: _ListeningSocket) -> None:
        assert self._readiness is not None
        for _ in range(ACCEPTS_MAX):
            try:
                client, address = bound.listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_RESOURCES:
                    raise
                log.error("accepting no clients for %.0f s: %s", ACCEPT_PAUSE_S, error.strerror)
                self._loop.remove_reader(bound.listening.fileno())
                self._loop.call_later(ACCEPT_PAUSE_S, self._accept_again, bound)
                return
            try:
                client.setblocking(False)
                own = client.getsockname() if bound.is_everywhere else bound.name
                if own[0] == address[0] and not bound.is_loopback:
                    _send_at_once(client)
                self._take(AcceptedClient(client, own, address, self._readiness))
            except OSError:
                client.close()  # it disconnected before it was set up

    def _accept_again(self, bound: _ListeningSocket) -> None:
        if bound.listening.fileno() >= 0:
            self._loop.add_reader(bound.listening.fileno(), self._accept, bound)

    def close(self) -> None:
        """Stop accepting; existing clients stay connected."""
        for one in self.sockets:
            if one.fileno() >= 0:
                self._loop.remove_reader(one.fileno())
                one.close()
        if self._readiness is not None:
            self._readiness.close_when_empty()


def _send_at_once(one: socket.socket) -> None:
    """Disable pacing for clients on this machine: there is no network to protect, and bbr's pacing arms timers."""
    if _CONGESTION is not None:
        with suppress(OSError):
            one.setsockopt(socket.IPPROTO_TCP, _CONGESTION, b"reno")

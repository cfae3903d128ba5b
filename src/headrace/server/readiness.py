"""Readiness of a listener's client sockets: one epoll for all, registered with the event loop as a single descriptor.

asyncio needs two microseconds per request between its selector and the protocol. With thousands of small requests that is a tenth
of the work. Without epoll, the loop's own selector watches the descriptors.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from headrace.base.turn_end import turn_end_of

EVENTS_MAX = 64  # clients served in one loop iteration, so that timers and other callbacks get their turn


def is_possible(loop: asyncio.AbstractEventLoop) -> bool:
    """Return whether the loop has a selector; the simulator's loop has none and provides its own transports."""
    return isinstance(loop, asyncio.SelectorEventLoop)


class Ready(Protocol):
    """Receives the events of one descriptor."""

    def readable(self) -> None:
        """Handle a descriptor that is readable, in error, or closed by the other end."""

    def writable(self) -> None: ...


class Readiness(Protocol):
    """Watches client descriptors for reading and writing."""

    def add(self, descriptor: int, transport: Ready) -> None: ...

    def watch(self, descriptor: int, *, reading: bool, writing: bool) -> None: ...

    def remove(self, descriptor: int) -> None: ...

    def close_when_empty(self) -> None: ...


Name = tuple[Any, ...]  # address of one end of a connection, as sockets report it: host and port come first


class AcceptedClient(NamedTuple):
    """A client whose connection was accepted, before it has a transport."""

    client_socket: socket.socket
    own: Name  # our end of the connection
    address: Name  # the client's end
    readiness: Readiness  # watches the socket


Take = Callable[[AcceptedClient], None]


def make_readiness(loop: asyncio.AbstractEventLoop) -> Readiness:
    return EpollReadiness(loop) if hasattr(select, "epoll") else LoopReadiness(loop)


class EpollReadiness:
    """Readiness by an epoll inside the loop's selector."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll = select.epoll()
        self._poll = self._epoll.poll
        self._transports: dict[int, Ready] = {}
        self._closing = False
        self._turn_end = turn_end_of(loop)
        loop.add_reader(self._epoll.fileno(), self._ready)

    def _ready(self) -> None:
        transports = self._transports
        self._turn_end.begin()
        try:
            for descriptor, events in self._poll(0, EVENTS_MAX):
                transport = transports.get(descriptor)
                if transport is None:
                    continue  # closed by another callback in this iteration
                if events & select.EPOLLOUT:
                    transport.writable()
                if events & ~select.EPOLLOUT:
                    transport.readable()
        finally:
            self._turn_end.end()

    def add(self, descriptor: int, transport: Ready) -> None:
        self._transports[descriptor] = transport
        self._epoll.register(descriptor, select.EPOLLIN)

    def watch(self, descriptor: int, *, reading: bool, writing: bool) -> None:
        self._epoll.modify(descriptor, (select.EPOLLIN if reading else 0) | (select.EPOLLOUT if writing else 0))

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


class LoopReadiness:
    """Readiness by the loop's own selector, for systems without epoll."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._transports: dict[int, Ready] = {}

    def add(self, descriptor: int, transport: Ready) -> None:
        self._transports[descriptor] = transport
        self._loop.add_reader(descriptor, transport.readable)

    def watch(self, descriptor: int, *, reading: bool, writing: bool) -> None:
        transport = self._transports[descriptor]
        if reading:
            self._loop.add_reader(descriptor, transport.readable)
        else:
            self._loop.remove_reader(descriptor)
        if writing:
            self._loop.add_writer(descriptor, transport.writable)
        else:
            self._loop.remove_writer(descriptor)

    def remove(self, descriptor: int) -> None:
        if self._transports.pop(descriptor, None) is not None:
            self._loop.remove_reader(descriptor)
            self._loop.remove_writer(descriptor)

    def close_when_empty(self) -> None:
        """Do nothing: the loop owns its selector."""

"""Which clients of a listener can be read from or written to: one epoll for all of them, hung into the loop as one descriptor.

asyncio takes two microseconds a request for what happens between its selector and the protocol; with thousands of small requests
that is a tenth of the work. Where there is no epoll the loop's own selector watches the descriptors.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable
from typing import Any, Protocol

EVENTS_MAX = 64  # clients served in one turn of the loop; timers and others come between


def is_possible(loop: asyncio.AbstractEventLoop) -> bool:
    """The simulator brings transports of its own."""
    return isinstance(loop, asyncio.SelectorEventLoop)


class Ready(Protocol):
    """Whoever waits for a descriptor."""

    def readable(self) -> None:
        """Or in error, or closed by the other end."""

    def writable(self) -> None: ...


class Readiness(Protocol):
    """Which clients can be read from or written to."""

    def add(self, descriptor: int, transport: Ready) -> None: ...

    def watch(self, descriptor: int, *, reading: bool, writing: bool) -> None: ...

    def remove(self, descriptor: int) -> None: ...

    def close_when_empty(self) -> None: ...


Name = tuple[Any, ...]  # of one end of a connection, as sockets tell it: host and port come first
Take = Callable[[socket.socket, Name, Name, Readiness], None]  # its own end's name, then the client's


def make_readiness(loop: asyncio.AbstractEventLoop) -> Readiness:
    return EpollReadiness(loop) if hasattr(select, "epoll") else LoopReadiness(loop)


class EpollReadiness:
    """An epoll inside the loop's selector."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._epoll = select.epoll()
        self._poll = self._epoll.poll
        self._transports: dict[int, Ready] = {}
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
    """Each descriptor in the loop's own selector, for systems without epoll."""

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
        """There is nothing to close."""

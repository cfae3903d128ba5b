"""Links between the processes of a cluster, and from clients to it, that a test can cut and heal. Needs no privileges.

A TCP proxy stands in front of each listener. It finds out which node has opened a connection by looking up the socket in /proc (Linux);
every other process is a client. While a link is cut, nothing passes: bytes under way wait, as they would wait for TCP to send them again,
and connections that were opened meanwhile are reset when the link is healed. A proxy refuses connections while its node does not run, so
that a killed node looks like a killed node.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from headrace.client.sync.loop_thread import LoopThread

LOOPBACK = "127.0.0.1"
CLIENTS = 0  # stands for all processes that are no nodes, where a link is named
CHUNK_BYTES = 1 << 16  # most bytes that a proxy holds in each direction of a connection
LISTEN_POLL_S = 0.01  # interval of attempts to reach a node that does not listen yet

_PROC = Path("/proc")
_INODE_FIELD = 9  # index in a line of /proc/net/tcp
_TABLES = ("tcp", "tcp6")

Link = frozenset[int]  # two nodes, or a node and CLIENTS
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Links:
    """The proxies of a cluster, in a thread of their own, from `start` to `close`."""

    def __init__(self, pids: Callable[[], Mapping[int, int]]) -> None:
        """Prepare links; `pids` returns the process ids of the running nodes, by node id."""
        self._pids = pids
        self._proxies: list[_Proxy] = []
        self._thread: LoopThread | None = None
        self._cut: set[Link] = set()
        self._healed = asyncio.Event()

    def add(self, node_id: int, listener_port: int, proxy_port: int) -> None:
        """Put a proxy in front of a node's listener; call it before `start`."""
        self._proxies.append(_Proxy(self, node_id, listener_port, proxy_port))

    @property
    def is_running(self) -> bool:
        return self._thread is not None

    def start(self) -> None:
        assert self._thread is None, "it is running already"
        self._thread = LoopThread("links")
        for proxy in self._proxies:
            self._thread.start(proxy.run())

    def close(self) -> None:
        """End all connections and proxies."""
        if self._thread is not None:
            self._thread.do(self._close())
            self._thread.close()
            self._thread = None

    async def _close(self) -> None:
        for proxy in self._proxies:
            proxy.close()

    def cut(self, links: set[Link]) -> None:
        """Let nothing pass over these links from now on, until `heal`."""
        assert self._thread is not None, "start comes first"
        self._thread.do(self._set(self._cut | links))

    def heal(self) -> None:
        """Restore all links."""
        assert self._thread is not None, "start comes first"
        self._thread.do(self._set(set()))

    async def _set(self, cut: set[Link]) -> None:
        self._cut = cut
        self._healed.set()
        self._healed = asyncio.Event()

    # --- for the proxies, in the thread

    def is_cut(self, link: Link) -> bool:
        return link in self._cut

    async def wait_until_whole(self, link: Link) -> None:
        while link in self._cut:
            await self._healed.wait()

    def link_of(self, node_id: int, peer_port: int, proxy_port: int) -> Link:
        """Return the link of a connection that a proxy has accepted."""
        return frozenset((node_id, owner_of(peer_port, proxy_port, self._pids())))


class _Proxy:
    """The proxy in front of one listener of a node."""

    def __init__(self, links: Links, node_id: int, listener_port: int, proxy_port: int) -> None:
        self._links = links
        self._node_id = node_id
        self._listener_port = listener_port
        self._port = proxy_port
        self._running: asyncio.Task[None] | None = None
        self._server: asyncio.Server | None = None
        self._refused = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()

    async def run(self) -> None:
        """Listen while the node listens, until `close`."""
        self._running = asyncio.current_task()
        while True:
            await self._wait_until_reachable()
            self._refused.clear()
            try:
                self._server = await asyncio.start_server(self._serve, LOOPBACK, self._port, limit=CHUNK_BYTES)
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                await asyncio.sleep(LISTEN_POLL_S)  # a socket of the test may use it as its own port for a moment
                continue
            await self._refused.wait()

    def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        self._refused.set()

    def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
        self._stop_listening()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _wait_until_reachable(self) -> None:
        while not await self._is_reachable():
            await asyncio.sleep(LISTEN_POLL_S)

    async def _is_reachable(self) -> bool:
        """Return whether the node's listener accepts connections."""
        try:
            _, writer = await asyncio.open_connection(LOOPBACK, self._listener_port)
        except OSError:
            return False
        writer.transport.abort()
        return True

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one connection on until one of its ends is closed."""
        self._writers.add(writer)
        try:
            link = self._links.link_of(self._node_id, writer.get_extra_info("peername")[1], self._port)
            if self._links.is_cut(link):
                await self._links.wait_until_whole(link)
                return  # the connection would not have been opened
            try:
                onward = await asyncio.open_connection(LOOPBACK, self._listener_port, limit=CHUNK_BYTES)
            except OSError:
                self._stop_listening()
                return
            self._writers.add(onward[1])
            try:
                await self._relay(link, (reader, writer), onward)
            finally:
                self._writers.discard(onward[1])
                onward[1].transport.abort()
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _relay(self, link: Link, one: Connection, other: Connection) -> None:
        for _, writer in (one, other):
            writer.transport.set_write_buffer_limits(high=CHUNK_BYTES)
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pumps = [
            asyncio.create_task(self._pump(link, one[0], other[1])),
            asyncio.create_task(self._pump(link, other[0], one[1])),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
        # BEFORE the other end sees the connection closed: it may then try whether the node still accepts connections.
        if not await self._is_reachable():
            self._stop_listening()
        for _, writer in (one, other):
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()  # sends what is buffered

    async def _pump(self, link: Link, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            data = await reader.read(CHUNK_BYTES)
            await self._links.wait_until_whole(link)
            if not data:
                return
            writer.write(data)
            await writer.drain()


def owner_of(peer_port: int, proxy_port: int, pids: Mapping[int, int]) -> int:
    """Return the node whose process has the connection from `peer_port` to `proxy_port`, or CLIENTS."""
    target = f"socket:[{_inode_of(peer_port, proxy_port)}]"
    for node_id, pid in pids.items():
        folder = _PROC / str(pid) / "fd"
        with suppress(OSError):  # the process has just ended
            for name in os.listdir(folder):
                with suppress(OSError):
                    if os.readlink(folder / name) == target:
                        return node_id
    return CLIENTS


def _inode_of(peer_port: int, proxy_port: int) -> str:
    """Return the inode of the connecting socket, or an empty text if the kernel does not list it."""
    ends = (f":{peer_port:04X}", f":{proxy_port:04X}")
    for table in _TABLES:
        with suppress(OSError):
            for line in (_PROC / "net" / table).read_text().splitlines()[1:]:
                fields = line.split()
                if fields[1].endswith(ends[0]) and fields[2].endswith(ends[1]):
                    return fields[_INODE_FIELD]
    return ""

"""The network between simulated machines: servers by host and port, connections with varying latency, and faults.

Bytes of one connection arrive in order, but connections may overtake each other. A connection can be cut at any byte, everything can be
slow for a while, and a partition cuts all connections and refuses new ones until it heals. In a cluster, links between two hosts can be
blocked, in both directions or in one, for all ports or for one, or for some connections only.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Sequence
from contextvars import Context, copy_context
from random import Random
from typing import Any

from testkit.simulator.loop import NO_PROCESS, PROCESS, Process, SimulatedLoop
from testkit.simulator.transport import SimulatedTransport

LATENCY_S = 0.0004
LATENCY_GRAIN_S = 0.0001  # coarse on purpose: the seed decides the order of events at the same instant
STALL_S = 0.7
CONNECT_TIMEOUT_S = 3.0
POWER_LOSS_SILENCE_S = 1.0
EPHEMERAL_PORT_MIN = 40_000
ANY_HOST = "*"
ANY_PORT = 0

ProtocolFactory = Callable[[], asyncio.BaseProtocol]


class _Socket:
    """The part of a socket that a server exposes."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._address = address

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """Ignore the option: the transports have the only buffers."""


class SimulatedServer(asyncio.AbstractServer):
    def __init__(self, network: Network, factory: ProtocolFactory, address: tuple[str, int]) -> None:
        self._network = network
        self.factory = factory
        self.context: Context = copy_context()
        self.process = PROCESS.get()
        self.address = address
        self.sockets: tuple[_Socket, ...] = (_Socket(address),)
        self.serving = False

    async def start_serving(self) -> None:
        self.serving = True

    def is_serving(self) -> bool:
        return self.serving

    def close(self) -> None:
        self.serving = False
        self.sockets = ()
        self._network.unbind(self)

    async def serve_forever(self) -> None:
        await self.start_serving()
        await self._network.loop.create_future()

    async def wait_closed(self) -> None:
        return

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._network.loop


class Network:
    def __init__(self, loop: SimulatedLoop, random: Random, trace: Callable[[str], None] | None = None) -> None:
        self.loop = loop
        self._random = random
        self._trace = trace
        self._servers: dict[tuple[str, int], SimulatedServer] = {}
        self._ends: dict[SimulatedTransport, None] = {}  # an ordered set: iteration must be deterministic
        self._next_port = EPHEMERAL_PORT_MIN
        self._connections = 0
        self._healed_at = 0.0
        self._blocked: set[tuple[str, str, int]] = set()  # hosts between which nothing arrives, and the server's port
        self._broken: dict[frozenset[str], float] = {}  # share of connections between two hosts that take a broken path
        self.latency_s = LATENCY_S
        self.stall_share = 0.0  # share of latencies of up to STALL_S
        self.split_share = 0.1  # share of pieces that are split at a random byte
        self.cut_share = 0.0  # share of pieces after which some connection is cut
        loop.attach(self)

    # --- for the loop

    async def create_server(
        self, factory: ProtocolFactory, host: str | None, port: int, *, start_serving: bool = True, **_: Any
    ) -> SimulatedServer:
        address = (host or ANY_HOST, port or self._free_port())
        if address in self._servers:
            raise OSError(errno.EADDRINUSE, "address already in use")
        server = self._servers[address] = SimulatedServer(self, factory, address)
        server.serving = start_serving
        return server

    def _free_port(self) -> int:
        self._next_port += 1
        return self._next_port

    def unbind(self, server: SimulatedServer) -> None:
        if self._servers.get(server.address) is server:
            del self._servers[server.address]

    async def create_connection(
        self, factory: ProtocolFactory, host: str, port: int, **_: Any
    ) -> tuple[SimulatedTransport, asyncio.BaseProtocol]:
        await asyncio.sleep(2 * self.latency())
        if self.loop.now < self._healed_at:
            if self._random.random() < 0.5:
                await asyncio.sleep(CONNECT_TIMEOUT_S)
                raise OSError(errno.ETIMEDOUT, "no response to the connection attempt")
            raise ConnectionRefusedError(errno.ECONNREFUSED, "the network is partitioned")
        server = self._servers.get((host, port)) or self._servers.get((ANY_HOST, port))
        source = _host_of(PROCESS.get())
        if self._is_blocked(source, host, port) or self._takes_broken_path(source, host):
            await asyncio.sleep(CONNECT_TIMEOUT_S)
            raise OSError(errno.ETIMEDOUT, f"no response from {host}")
        if server is None or not server.serving:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"no server listens on {host}:{port}")
        self._connections += 1
        number = self._connections
        here, there = ("127.0.0.1", self._free_port()), ("127.0.0.1", port)
        near = SimulatedTransport(self.loop, self, f"{number}c", PROCESS.get(), copy_context(), (here, there))
        far = SimulatedTransport(self.loop, self, f"{number}s", server.process, server.context, (there, here))
        near.peer, far.peer = far, near
        self._ends[near] = self._ends[far] = None
        self.note(f"{number} connects to {host}:{port}")
        self.loop.call_later(self.latency(), lambda: far.begin(server.factory()), context=server.context)
        protocol = factory()
        near.begin(protocol)
        return near, protocol

    # --- for connections

    def latency(self) -> float:
        if self.stall_share and self._random.random() < self.stall_share:
            return self._random.random() * STALL_S
        grains = int(self._random.random() * 2 * self.latency_s / LATENCY_GRAIN_S) + 1
        return grains * LATENCY_GRAIN_S

    def piece(self, size: int) -> int:
        random = self._random
        if self.cut_share and random.random() < self.cut_share:
            self.loop.call_later(self.latency(), self.cut_some, 1, context=NO_PROCESS)
        return random.randint(1, size) if size > 1 and random.random() < self.split_share else size

    def forget(self, end: SimulatedTransport) -> None:
        self._ends.pop(end, None)

    def note(self, text: str) -> None:
        if self._trace is not None:
            self._trace(f"network {text}")

    # --- faults

    def connections(self) -> list[SimulatedTransport]:
        """Return the client's end of each connection."""
        return [end for end in self._ends if end.name.endswith("c")]

    def cut(self, end: SimulatedTransport) -> None:
        """Cut a connection at any byte of either direction; each end is reset after a separate delay."""
        self.note(f"{end.name} cut")
        for side in (end, end.peer):
            side.cut_incoming(self._random.randint(0, side.under_way_bytes))
            self.loop.call_later(self.latency(), side.reset, context=NO_PROCESS)

    def cut_some(self, count: int) -> None:
        found = self.connections()
        for end in self._random.sample(found, min(count, len(found))):
            self.cut(end)

    def stall(self, ends: Sequence[SimulatedTransport], seconds: float) -> None:
        """Let nothing arrive on these connections, although others between the same hosts work; reset them in the end."""
        for end in ends:
            self.note(f"{end.name} stalls")
            for side in (end, end.peer):
                side.cut_incoming(0)
            self.loop.call_later(seconds, self._end_stall, end, context=NO_PROCESS)

    def _end_stall(self, end: SimulatedTransport) -> None:
        if end in self._ends or end.peer in self._ends:
            self.cut(end)

    def connections_to(self, port: int) -> list[SimulatedTransport]:
        """Return the client's end of each connection to this port."""
        return [end for end in self.connections() if end.get_extra_info("peername")[1] == port]

    def partition(self, seconds: float) -> None:
        self._healed_at = max(self._healed_at, self.loop.now + seconds)
        for end in self.connections():
            self.cut(end)

    def block(self, source: str, target: str, port: int = ANY_PORT) -> None:
        """Let nothing arrive from one host at another until `unblock`, on connections to this port or to any.

        A connection needs both directions, so those between the two hosts stall silently. Nothing sent on them arrives
        later, as if their retransmissions had come too late: when the link is unblocked, both ends are reset.
        """
        self._blocked.add((source, target, port))
        for end in self.connections():
            if self._is_blocked(*self._link(end)):
                for side in (end, end.peer):
                    side.cut_incoming(0)

    def break_path(self, one: str, other: str, share: float, seconds: float) -> None:
        """Break one of several paths between two hosts: each connection, old or new, takes it with this probability.

        Connections that take it stall, and new ones cannot be made, while others between the same hosts work.
        """
        links = [end for end in self.connections() if {one, other} == set(self._link(end)[:2])]
        self.stall([end for end in links if self._random.random() < share], seconds)
        self._broken[frozenset((one, other))] = share
        self.loop.call_later(seconds, self._broken.pop, frozenset((one, other)), None, context=NO_PROCESS)

    def _takes_broken_path(self, one: str, other: str) -> bool:
        share = self._broken.get(frozenset((one, other)))
        return share is not None and self._random.random() < share

    def unblock(self) -> None:
        """Let everything arrive again, and reset the connections that stalled."""
        for end in self.connections():
            if self._is_blocked(*self._link(end)):
                self.cut(end)
        self._blocked.clear()

    def _is_blocked(self, one: str, other: str, port: int) -> bool:
        links = ((one, other), (other, one))
        return any((*link, blocked) in self._blocked for link in links for blocked in (ANY_PORT, port))

    @staticmethod
    def _link(end: SimulatedTransport) -> tuple[str, str, int]:
        """Return the hosts of a connection and the server's port, given the client's end."""
        return _host_of(end.process), _host_of(end.peer.process), end.get_extra_info("peername")[1]

    def heal(self) -> None:
        self._healed_at = 0.0
        self._broken.clear()
        self.unblock()
        self.latency_s, self.stall_share, self.cut_share = LATENCY_S, 0.0, 0.0

    def process_died(self, process: Process, *, silently: bool) -> None:
        """Close the servers and connections of a dead process.

        `silently` means that the machine has lost power: nothing in flight arrives, and peers are reset only later.
        """
        for server in [server for server in self._servers.values() if server.process is process]:
            server.close()
        for end in [end for end in self._ends if end.process is process]:
            peer = end.peer
            end.vanish()
            peer.cut_incoming(0 if silently else self._random.randint(0, peer.under_way_bytes))
            if silently:
                peer.forget_received()
            delay = self._random.random() * POWER_LOSS_SILENCE_S if silently else self.latency()
            self.loop.call_later(delay, peer.reset, context=NO_PROCESS)


def _host_of(process: Process | None) -> str:
    """Return the host of a process; clients have none."""
    return "" if process is None else process.host

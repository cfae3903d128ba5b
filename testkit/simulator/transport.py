"""One end of an in-memory connection: a byte stream that arrives in order, but late, in any pieces, or truncated.

Each end has unsent bytes, pieces in flight towards it, and received bytes that its protocol has not taken. Protocol callbacks run in
the context of the process that owns the end, so they stop with it; bytes in flight do not depend on any process.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from contextvars import Context
from typing import Any, Protocol

from testkit.simulator.loop import NO_PROCESS, Process, SimulatedLoop

WINDOW_BYTES = 64 * 1024  # bytes in flight or received but not taken, as much as the buffers of two sockets hold
HIGH_WATER_BYTES = 64 * 1024


class Wire(Protocol):
    """The part of the network that a connection uses."""

    def latency(self) -> float: ...

    def piece(self, size: int) -> int:
        """Return how many of `size` bytes to send in one piece."""

    def forget(self, end: SimulatedTransport) -> None: ...

    def note(self, text: str) -> None: ...


class SimulatedTransport(asyncio.Transport):
    def __init__(
        self, loop: SimulatedLoop, wire: Wire, name: str, process: Process | None, context: Context, addresses: Any
    ) -> None:
        super().__init__({"sockname": addresses[0], "peername": addresses[1]})
        self.name = name
        self.process = process
        self.peer: SimulatedTransport
        self._loop = loop
        self._wire = wire
        self._context = context
        self._protocol: asyncio.BaseProtocol | None = None
        self._unsent = bytearray()
        self._under_way: deque[bytes] = deque()  # pieces in flight towards this end
        self._under_way_bytes = 0
        self._received = bytearray()
        self._last_arrival = 0.0  # time of the latest arrival scheduled at this end; nothing may arrive before it
        self._is_cut = False  # bytes towards this end were lost: no later ones may arrive
        self._reading = True
        self._eof_arrived = False
        self._eof_delivered = False
        self._writing_paused = False
        self._closing = False
        self._lost = False
        self._high, self._low = HIGH_WATER_BYTES, HIGH_WATER_BYTES // 4

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        """Attach the protocol, in the context of its owner; bytes received earlier follow after `connection_made`."""
        self._protocol = protocol
        protocol.connection_made(self)
        self._feed_soon()

    # --- asyncio.Transport

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def is_closing(self) -> bool:
        return self._closing

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._feed_soon()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = HIGH_WATER_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low
        self._steer_writer()

    def get_write_buffer_size(self) -> int:
        return len(self._unsent)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not data:
            return
        self._unsent += data
        self.pump()
        if not self._writing_paused and len(self._unsent) > self._high:
            self._steer_writer()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def can_write_eof(self) -> bool:
        return False

    def close(self) -> None:
        """Send what was written, then EOF."""
        if not self._closing:
            self._closing = True
            self.pump()
            if not self._unsent:
                self._finish()

    def abort(self) -> None:
        if not self._lost:
            self._closing = True
            self._unsent.clear()
            self._loop.call_later(self._wire.latency(), self.peer.reset, context=NO_PROCESS)
            self._loop.call_soon(self._lose, None, context=self._context)

    # --- sending

    def pump(self) -> None:
        """Send as many unsent bytes as fit into the window."""
        peer = self.peer
        while self._unsent:
            space = WINDOW_BYTES - peer._under_way_bytes - len(peer._received)
            if space <= 0:
                break
            size = self._wire.piece(min(space, len(self._unsent)))
            piece = bytes(memoryview(self._unsent)[:size])
            del self._unsent[:size]
            if peer._is_cut:
                continue
            peer._under_way.append(piece)
            peer._under_way_bytes += size
            peer._arrives(peer._arrive)
        if self._writing_paused and len(self._unsent) <= self._low:
            self._loop.call_soon(self._steer_writer, context=self._context)
        if self._closing and not self._unsent:
            self._finish()

    def _arrives(self, what: Any) -> None:
        self._last_arrival = max(self._last_arrival, self._loop.now + self._wire.latency())
        self._loop.call_at(self._last_arrival, what, context=NO_PROCESS)

    def _steer_writer(self) -> None:
        protocol = self._protocol
        if protocol is None or self._lost:
            return
        if not self._writing_paused and len(self._unsent) > self._high:
            self._writing_paused = True
            protocol.pause_writing()
        elif self._writing_paused and len(self._unsent) <= self._low:
            self._writing_paused = False
            protocol.resume_writing()

    def _finish(self) -> None:
        if not self._eof_delivered and not self._lost:
            self._eof_delivered = True
            self.peer._arrives(self.peer._arrive_eof)
            self._loop.call_soon(self._lose, None, context=self._context)

    # --- receiving

    def _arrive(self) -> None:
        if not self._under_way:
            return  # the connection was cut
        piece = self._under_way.popleft()
        self._under_way_bytes -= len(piece)
        if self._closing:
            # Reset the sender, as a kernel does when data arrives at a closed socket.
            self._loop.call_later(self._wire.latency(), self.peer.reset, context=NO_PROCESS)
            return
        self._wire.note(f"{self.name} gets {len(piece)}")
        self._received += piece
        self._feed_soon()

    def _arrive_eof(self) -> None:
        if self._is_cut:
            return
        self._eof_arrived = True
        self._feed_soon()

    def _feed_soon(self) -> None:
        if (self._received or self._eof_arrived) and self._reading and not self._closing:
            self._loop.call_soon(self._feed, context=self._context)

    def _feed(self) -> None:
        protocol = self._protocol
        if protocol is None or self._closing or not self._reading:
            return
        try:
            if self._received:
                self._give(protocol)
                self.peer.pump()
                self._feed_soon()
            elif self._eof_arrived:
                self._eof_arrived = False
                if not protocol.eof_received():  # type: ignore[attr-defined]
                    self.close()
        except Exception as error:
            # As in asyncio, abort the connection and call the loop's exception handler.
            self._loop.call_exception_handler({"message": f"{type(protocol).__name__} failed", "exception": error})
            self.abort()

    def _give(self, protocol: asyncio.BaseProtocol) -> None:
        if isinstance(protocol, asyncio.BufferedProtocol):
            buffer = memoryview(protocol.get_buffer(-1))
            size = min(len(buffer), len(self._received))
            assert size > 0, "get_buffer returned an empty buffer"
            buffer[:size] = memoryview(self._received)[:size]
            del self._received[:size]
            protocol.buffer_updated(size)
        else:
            assert isinstance(protocol, asyncio.Protocol)
            data = bytes(self._received)
            self._received.clear()
            protocol.data_received(data)

    # --- ending

    def cut_incoming(self, delivered: int) -> None:
        """Deliver the first `delivered` bytes in flight now, and lose the rest."""
        rest = b"".join(self._under_way)[:delivered]
        self._is_cut = True
        self._under_way.clear()
        self._under_way_bytes = 0
        self._eof_arrived = False
        if not self._closing:
            self._received += rest
            self._feed_soon()

    @property
    def under_way_bytes(self) -> int:
        return self._under_way_bytes

    def vanish(self) -> None:
        """Drop this end because its process died, without any callback or notice to the peer."""
        self._closing = self._lost = True
        self._unsent.clear()
        self._received.clear()
        self._wire.forget(self)

    def forget_received(self) -> None:
        self._received.clear()

    def reset(self) -> None:
        if not self._lost:
            self._closing = True
            self._unsent.clear()
            error = ConnectionResetError("the simulated connection was reset")
            self._loop.call_soon(self._lose, error, context=self._context)

    def _lose(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = True
        self._received.clear()
        self._wire.forget(self)
        self._wire.note(f"{self.name} lost {'reset' if error else 'closed'}")
        if self._protocol is not None:
            self._protocol.connection_lost(error)

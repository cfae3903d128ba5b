"""One client connection: passes received frames to the dispatcher and sends responses in the order of the requests.

Frames are parsed in place, without a copy between the kernel and the log. They are received into the scratch buffer that all
connections share; after the first incomplete request, into the connection's own buffer, until the connection is idle. A handler
may read its frame during its call. One that needs it longer returns a Deferred with `holds_frame`, and nothing more is parsed until
that is done.
"""

from __future__ import annotations

import asyncio
import logging
from struct import Struct

from headrace.records.kernel import allocate
from headrace.server.connection_pool import ConnectionPool
from headrace.server.context import Peer
from headrace.server.frames import CloseConnection, Deferred, FrameHandler
from headrace.server.response_writer import ResponseParts, ResponseWriter

log = logging.getLogger(__name__)

RECEIVE_BUFFER_AHEAD = 6  # frames that fit the buffer, so that a pipelining producer is read in one call
RECEIVE_BUFFER_AHEAD_MAX = 8 * 1024 * 1024
RECEIVE_BUFFER_UNPROVEN_MAX = 1024 * 1024  # limit for a frame larger than any before, until half of it is received
FRAME_MIN = 8  # api key, version, correlation id
RESPONSES_WAITING_MAX = 128  # waiting responses at which a connection is no longer read from
GATHER_CONNECTIONS_MIN = 8  # from here on, the responses of one turn are sent together
SLOWEST_BYTES_PER_SWEEP = 4096  # part of a request that counts as progress; a byte now and then does not

_SIZE = Struct(">i")


class Connection(asyncio.BufferedProtocol):
    def __init__(self, handler: FrameHandler, listener: str, pool: ConnectionPool, frame_max: int) -> None:
        self._handler = handler
        self._listener = listener
        self._pool = pool
        # Frame size limits, tighter before SASL authentication (server.authentication).
        self.frame_min, self.frame_max = FRAME_MIN, frame_max
        self._transport: asyncio.Transport | None = None
        self._writer: ResponseWriter | None = None
        self.peer = Peer(listener, "")
        self._view = pool.scratch
        self._owns_buffer = False  # if False, `_view` is the shared buffer and holds no data between two calls
        self._start = 0  # index of the first unparsed byte
        self._end = 0  # index after the last received byte
        self._largest = 0  # size of the largest complete frame so far
        self._announced = 0  # size of the incomplete frame at _start with its length prefix; 0 if unknown
        self._waiting: list[Deferred | ResponseParts] = []  # the first unresolved response and those that follow it
        self._out: ResponseParts = []  # responses to send with the next flush
        self._frame_held = False
        self._parsing = False
        self._write_paused = False
        self._reading = True
        self._bytes_in = pool.bytes_in
        self._quiet_sweeps = 0  # consecutive sweeps of the listener that found no progress
        self._pending_at_sweep = 0

    # --- receiving

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._writer = ResponseWriter(transport)
        name = transport.get_extra_info("peername")
        own = transport.get_extra_info("sockname")
        self.peer = Peer(
            self._listener,
            name[0] if isinstance(name, tuple) else "local",
            own[1] if isinstance(own, tuple) else 0,
            authority=self._pool.authority,
            source_port=name[1] if isinstance(name, tuple) else 0,
        )
        self._pool.connections[self] = None
        self._pool.created.value += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_transport()
        self._pool.connections.pop(self, None)
        waiting, self._waiting = self._waiting, []
        for response in waiting:
            if isinstance(response, Deferred) and not response.done:
                response.abandon()
        on_lost, self.peer.on_lost = self.peer.on_lost, None
        if on_lost is not None:
            on_lost()

    def get_buffer(self, sizehint: int) -> memoryview:
        if not self._owns_buffer:
            self._view = view = self._pool.scratch
            return view
        size = len(self._view)
        if self._end == size or (self._start and self._announced > size - self._start):
            self._make_space()
        return self._view[self._end :]

    def _make_space(self) -> None:
        """Move the partial frame to the front, into a larger buffer if its announced size needs one.

        A larger buffer fits several frames of that size. Four bytes can announce a hundred megabytes, so the buffer stays
        small until the client has sent half of the frame, or a frame of that size before.
        """
        pending = self._end - self._start
        needed = max(self._announced, pending + 1)
        proven = self._largest + 4
        size = len(self._view)
        if needed > size or 2 * proven > size:
            ahead = max(needed, min(max(needed, proven) * RECEIVE_BUFFER_AHEAD, RECEIVE_BUFFER_AHEAD_MAX))
            earned = max(RECEIVE_BUFFER_UNPROVEN_MAX, 2 * pending, proven * RECEIVE_BUFFER_AHEAD)
            size = max(size, min(ahead, earned))
        if size != len(self._view) or not self._owns_buffer:
            fresh = memoryview(allocate(size))  # not zeroed, so unused pages cost no memory
            fresh[:pending] = self._view[self._start : self._end]
            self._view = fresh
            self._owns_buffer = True
        else:
            self._view[:pending] = self._view[self._start : self._end]
        self._start, self._end = 0, pending

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        self._bytes_in.value += nbytes
        if not self._frame_held:
            self._parse()
        if not self._owns_buffer and (self._start != self._end or self._frame_held):
            self._own_buffer()

    def _own_buffer(self) -> None:
        """Give the connection its own buffer, because the shared one holds a partial or held frame."""
        if self._frame_held:  # a handler is using it: the others get a new one
            self._owns_buffer = True
            self._pool.renew_scratch()
        elif self._transport is not None:
            self._make_space()
        else:
            self._start = self._end = 0

    def sweep(self) -> int:
        """Return the number of sweeps, this one included, since the last progress.

        Progress is a complete request, or SLOWEST_BYTES_PER_SWEEP more bytes of one. An idle connection's buffer is released.
        """
        pending = self._end - self._start
        if pending - self._pending_at_sweep >= SLOWEST_BYTES_PER_SWEEP:
            self._quiet_sweeps = 0
        self._pending_at_sweep = pending
        if self._quiet_sweeps and not pending and not self._frame_held:
            self._release_buffer()
        self._quiet_sweeps += 1
        return self._quiet_sweeps

    def _release_buffer(self) -> None:
        self._view, self._owns_buffer = self._pool.scratch, False
        self._start = self._end = self._largest = self._announced = 0

    def _parse(self) -> None:
        if self._parsing:
            return  # a handler resolved an earlier request of this connection; the loop below continues anyway
        self._parsing = True
        try:
            while not self._frame_held and len(self._waiting) < RESPONSES_WAITING_MAX and not self._write_paused:
                start = self._start
                received = self._end - start
                if received < 4:
                    self._announced = 0
                    break
                (size,) = _SIZE.unpack_from(self._view, start)
                if size > self.frame_max or size < self.frame_min:
                    raise CloseConnection(
                        f"a request of {size} bytes; allowed are {self.frame_min} to {self.frame_max}"
                    )
                if received < size + 4:
                    self._announced = size + 4
                    break
                self._start = start + 4 + size
                if size > self._largest:
                    self._largest = size
                self._quiet_sweeps = 0
                response = self._handler.handle(self.peer, self._view[start + 4 : self._start])
                if type(response) is list and not self._waiting:
                    self._out += response
                else:
                    self._take(response)
            if self._start == self._end:
                self._start = self._end = self._announced = 0
        except CloseConnection as reason:
            self.flush()
            self._refuse(str(reason))
            return
        except Exception:
            self.flush()
            log.exception("connection from %s closed: a request could not be handled", self.peer.address)
            self.close()
            return
        finally:
            self._parsing = False
        self._respond()

    def _take(self, response: ResponseParts | Deferred | None) -> None:
        if response is None:
            return
        if isinstance(response, Deferred) and not response.done:
            response.on_resolved = self._resolved
            self._frame_held = response.holds_frame
            self._waiting.append(response)
        else:
            if isinstance(response, Deferred):
                if response.response is None:
                    raise CloseConnection("a request failed, and its response cannot express the error")
                response = response.response
            if self._waiting:
                self._waiting.append(response)
            else:
                self._out += response

    def _steer_reading(self) -> None:
        """Apply back-pressure: stop reading if the client does not read its responses or sends too many requests."""
        if self._transport is None:
            return
        full = self._frame_held or self._write_paused or len(self._waiting) >= RESPONSES_WAITING_MAX
        if full == self._reading:
            self._reading = not full
            if full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def eof_received(self) -> bool:
        return False

    # --- responding

    def _respond(self) -> None:
        """Send the responses that are ready, and apply back-pressure."""
        if self._out:
            if len(self._pool.connections) < GATHER_CONNECTIONS_MIN:
                self.flush()
            else:
                self._pool.flush_later(self)
        if not self._reading or self._waiting or self._frame_held or self._write_paused:
            self._steer_reading()

    def _resolved(self, deferred: Deferred) -> None:
        """Take the response of a parked request and send all responses that no earlier one blocks.

        A follower's fetch may be the cause, in the middle of which no other request may be handled. Only one that held its
        frame is resolved in a turn of its own.
        """
        if self._transport is None:
            return
        if deferred.response is None:
            self._refuse("a request failed, and its response cannot express the error")
            return
        if deferred.holds_frame:
            self._frame_held = False
        waiting = self._waiting
        was_full = len(waiting) >= RESPONSES_WAITING_MAX
        while waiting:
            first = waiting[0]
            if isinstance(first, Deferred):
                if not first.done:
                    break
                assert first.response is not None
                self._out += first.response
            else:
                self._out += first
            del waiting[0]
        if deferred.holds_frame:
            self._parse()
        elif not self._parsing:
            if was_full:
                self._pool.at_turn_end(self._parse)
            self._respond()

    def flush(self) -> None:
        out = self._out
        if not out or self._writer is None:
            return
        self._out = []
        size = len(out[0]) if len(out) == 1 else sum(map(len, out))
        self._pool.bytes_out.value += size
        try:
            self._writer.send(out, size)
        except (OSError, ValueError) as error:
            self._unreadable(error)

    def pause_writing(self) -> None:
        self._write_paused = True
        if self._writer is not None:
            self._writer.paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._writer is None:
            return
        self._writer.paused = False
        try:
            self._writer.send_more()
        except (OSError, ValueError) as error:
            self._unreadable(error)
        if not self._write_paused and not self._frame_held:
            self._parse()

    def _unreadable(self, error: Exception) -> None:
        """Close the connection: in the middle of a response there is no other way to report an error."""
        log.warning("connection from %s closed: records could not be read to the end: %s", self.peer.address, error)
        self.close()

    # --- closing

    def _refuse(self, reason: str) -> None:
        transport = self._transport
        if self._pool.refuse(self._listener, self.peer.address, reason) or transport is None:
            self.close()
        else:
            self._forget_transport()
            self._pool.hold(transport)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._forget_transport()

    def _forget_transport(self) -> None:
        """Drop the transport and the receive buffer: a closed connection must not keep a partial frame alive.

        A handler that still needs its frame has its own view of the buffer.
        """
        self._transport = None
        self._release_buffer()
        if self._writer is not None:
            self._writer.close()
            self._writer = None

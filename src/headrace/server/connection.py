"""One client connection: bytes in, frames to the dispatcher, answers out in the order of the requests.

Frames are parsed in place in one receive buffer (no copy between the kernel and the log). A handler may look at its frame
during its call; one that needs it longer answers with a Deferred that `holds_frame`, and nothing more is parsed until it is done.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Protocol

from headrace.base.errors import HeadraceError
from headrace.base.metrics import Counter
from headrace.records.kernel import allocate
from headrace.server.context import Peer
from headrace.server.outlet import Answer, Outlet

if TYPE_CHECKING:
    from headrace.server.admission import Authority

log = logging.getLogger(__name__)

RECEIVE_BUFFER_MIN = 64 * 1024
RECEIVE_BUFFER_AHEAD = (
    6  # frames of the announced size that fit the buffer, so that a pipelining producer is read in one go
)
RECEIVE_BUFFER_AHEAD_MAX = 8 * 1024 * 1024
RECEIVE_BUFFER_UNPROVEN_MAX = 1024 * 1024  # for a frame larger than any that came whole, before half of it has come
FRAME_MIN = 8  # api key, version, correlation id
ANSWERS_WAITING_MAX = 128  # requests taken from one connection before their answers have left
GATHER_CONNECTIONS_MIN = 8  # from here on the answers of a turn leave together

_SIZE = Struct(">i")


class CloseConnection(HeadraceError):
    """This connection cannot go on; the text says why."""


class Deferred:
    """An answer that comes later. `resolve` may be called once, from the event loop; `abandon`: nobody waits any more."""

    __slots__ = ("abandon", "answer", "done", "holds_frame", "tell")

    def __init__(self, abandon: Callable[[], object], holds_frame: bool = False) -> None:
        self.abandon = abandon
        self.holds_frame = holds_frame
        self.done = False
        self.answer: Answer | None = None
        self.tell: Callable[[Deferred], None] | None = None

    def resolve(self, answer: Answer | None) -> None:
        """None closes the connection: the handler failed in a way that has no answer."""
        if self.done:
            return
        self.done = True
        self.answer = answer
        if self.tell is not None:
            self.tell(self)

    async def wait(self) -> Answer | None:
        """For whoever dispatches a frame without a connection; cancelling the wait abandons the request."""
        if not self.done:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.tell = lambda _: None if future.done() else future.set_result(None)
            try:
                await future
            except asyncio.CancelledError:
                self.abandon()
                raise
        return self.answer


class FrameHandler(Protocol):
    def handle(self, peer: Peer, frame: memoryview) -> Answer | Deferred | None:
        """The answer's parts (size included), an answer to come, or None where none is sent (acks=0). CloseConnection ends it."""


class Company:
    """What all connections of a listener have in common: their counters, and the moment at which their answers leave.

    A send wakes the client, and waking costs more than sending. So with many clients the answers of one turn of the loop leave
    together at its end: a client program with many connections is woken once and finds them all.
    """

    __slots__ = ("_answering", "_loop", "authority", "bytes_in", "bytes_out", "connections", "refused")

    def __init__(
        self,
        bytes_in: Counter,
        bytes_out: Counter,
        refused: Counter,
        loop: asyncio.AbstractEventLoop,
        authority: Authority | None = None,
    ) -> None:
        self.bytes_in = bytes_in
        self.bytes_out = bytes_out
        self.refused = refused
        self.authority = authority  # who says what their peers may do
        self.connections: dict[Connection, None] = {}  # in the order of their coming: a set's order follows addresses
        self._loop = loop
        self._answering: list[Connection] = []

    def answer_later(self, connection: Connection) -> None:
        if not self._answering:
            self._loop.call_soon(self._answer)
        self._answering.append(connection)

    def _answer(self) -> None:
        answering, self._answering = self._answering, []
        for connection in answering:
            connection.flush()


class Connection(asyncio.BufferedProtocol):
    def __init__(self, handler: FrameHandler, listener: str, company: Company, frame_max: int) -> None:
        self._handler = handler
        self._listener = listener
        self._company = company
        # Of one frame; smaller while nobody knows who this is (server.authentication).
        self.frame_min, self.frame_max = FRAME_MIN, frame_max
        self._transport: asyncio.Transport | None = None
        self._outlet: Outlet | None = None
        self.peer = Peer(listener, "")
        self._buffer = allocate(RECEIVE_BUFFER_MIN)  # not zeroed: memory that nothing is received into costs nothing
        self._view = memoryview(self._buffer)
        self._start = 0  # of the first byte not yet parsed
        self._end = 0  # of what was received
        self._largest = 0  # of the frames that came whole
        self._wanted = 0  # size of the frame at _start, if it does not fit what is left of the buffer
        self._waiting: deque[Deferred | Answer] = deque()  # answers behind the first that is not there yet
        self._out: Answer = []  # answers to go with the next flush
        self._frame_held = False
        self._parsing = False
        self._write_paused = False
        self._reading = True
        self._bytes_in = company.bytes_in
        self.quiet_sweeps = 0  # of the listener, in a row, that found nothing received

    # --- receiving

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._outlet = Outlet(transport)
        name = transport.get_extra_info("peername")
        own = transport.get_extra_info("sockname")
        self.peer = Peer(
            self._listener,
            name[0] if isinstance(name, tuple) else "local",
            own[1] if isinstance(own, tuple) else 0,
            authority=self._company.authority,
            source_port=name[1] if isinstance(name, tuple) else 0,
        )
        self._company.connections[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_transport()
        self._company.connections.pop(self, None)
        waiting, self._waiting = self._waiting, deque()
        for answer in waiting:
            if isinstance(answer, Deferred) and not answer.done:
                answer.abandon()

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._end == len(self._buffer) or (self._start and self._wanted > len(self._buffer) - self._start):
            self._make_room()
        return self._view[self._end :]

    def _make_room(self) -> None:
        """Moves the partial frame to the front, into a larger buffer if its announced size (and a few more of it) wants one.

        Four bytes can announce a hundred megabytes: what a client has not sent yet, and never did before, it gets little room for.
        """
        pending = self._end - self._start
        wanted = max(self._wanted, pending + 1)
        proven = self._largest + 4
        size = len(self._buffer)
        if wanted > size or 2 * proven > size:
            ahead = max(wanted, min(max(wanted, proven) * RECEIVE_BUFFER_AHEAD, RECEIVE_BUFFER_AHEAD_MAX))
            earned = max(RECEIVE_BUFFER_UNPROVEN_MAX, 2 * pending, proven * RECEIVE_BUFFER_AHEAD)
            size = max(size, min(ahead, earned))
        if size != len(self._buffer):
            fresh = allocate(size)
            view = memoryview(fresh)
            view[:pending] = self._view[self._start : self._end]
            self._buffer, self._view = fresh, view
        else:
            self._view[:pending] = self._view[self._start : self._end]
        self._start, self._end = 0, pending

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        self._bytes_in.value += nbytes
        self.quiet_sweeps = 0
        if not self._frame_held:
            self._parse()

    def _parse(self) -> None:
        if self._parsing:
            return  # a handler answered an earlier request of this very connection; the loop below goes on by itself
        self._parsing = True
        try:
            while not self._frame_held and len(self._waiting) < ANSWERS_WAITING_MAX and not self._write_paused:
                start = self._start
                received = self._end - start
                if received < 4:
                    self._wanted = 0
                    break
                (size,) = _SIZE.unpack_from(self._buffer, start)
                if size > self.frame_max or size < self.frame_min:
                    raise CloseConnection(
                        f"a request of {size} bytes; allowed are {self.frame_min} to {self.frame_max}"
                    )
                if received < size + 4:
                    self._wanted = size + 4
                    break
                self._start = start + 4 + size
                if size > self._largest:
                    self._largest = size
                answer = self._handler.handle(self.peer, self._view[start + 4 : self._start])
                if type(answer) is list and not self._waiting:
                    self._out += answer
                else:
                    self._take(answer)
            if self._start == self._end:
                self._start = self._end = self._wanted = 0
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
        if self._out:
            if len(self._company.connections) < GATHER_CONNECTIONS_MIN:
                self.flush()
            else:
                self._company.answer_later(self)
        if not self._reading or self._waiting or self._frame_held or self._write_paused:
            self._steer_reading()

    def _take(self, answer: Answer | Deferred | None) -> None:
        if answer is None:
            return
        if isinstance(answer, Deferred) and not answer.done:
            answer.tell = self._answered
            self._frame_held = answer.holds_frame
            self._waiting.append(answer)
        else:
            if isinstance(answer, Deferred):
                if answer.answer is None:
                    raise CloseConnection("a request failed in a way that has no answer")
                answer = answer.answer
            if self._waiting:
                self._waiting.append(answer)
            else:
                self._out += answer

    def _steer_reading(self) -> None:
        """Back-pressure: a client that does not read its answers, or floods us with requests, is not read from."""
        if self._transport is None:
            return
        full = self._frame_held or self._write_paused or len(self._waiting) >= ANSWERS_WAITING_MAX
        if full == self._reading:
            self._reading = not full
            if full:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def eof_received(self) -> bool:
        return False

    # --- answering

    def _answered(self, deferred: Deferred) -> None:
        """The answer of a request that was waiting; it leaves when all before it have."""
        if self._transport is None:
            return
        if deferred.answer is None:
            self._refuse("a request failed in a way that has no answer")
            return
        if deferred.holds_frame:
            self._frame_held = False
        waiting = self._waiting
        while waiting:
            first = waiting[0]
            if isinstance(first, Deferred):
                if not first.done:
                    break
                assert first.answer is not None
                self._out += first.answer
            else:
                self._out += first
            waiting.popleft()
        self._parse()

    def flush(self) -> None:
        out = self._out
        if not out or self._outlet is None:
            return
        self._out = []
        size = len(out[0]) if len(out) == 1 else sum(map(len, out))
        self._company.bytes_out.value += size
        try:
            self._outlet.send(out, size)
        except (OSError, ValueError) as error:
            self._unreadable(error)

    def pause_writing(self) -> None:
        self._write_paused = True
        if self._outlet is not None:
            self._outlet.paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        if self._outlet is None:
            return
        self._outlet.paused = False
        try:
            self._outlet.send_more()
        except (OSError, ValueError) as error:
            self._unreadable(error)
        if not self._write_paused and not self._frame_held:
            self._parse()

    def _unreadable(self, error: Exception) -> None:
        """In the middle of an answer there is no way to say so but to end it."""
        log.warning("connection from %s closed: records could not be read to the end: %s", self.peer.address, error)
        self.close()

    # --- ending

    def _refuse(self, reason: str) -> None:
        self._company.refused.value += 1
        log.warning("connection from %s on %s closed: %s", self.peer.address, self._listener, reason)
        self.close()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._forget_transport()

    def _forget_transport(self) -> None:
        self._transport = None
        if self._outlet is not None:
            self._outlet.close()
            self._outlet = None

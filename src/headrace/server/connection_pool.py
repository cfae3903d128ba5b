"""State shared by all connections of a listener: counters, scratch buffer, batched flushing, refused connections."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from headrace.base.metrics import Counter
from headrace.base.turn_end import turn_end_of
from headrace.records.kernel import allocate

if TYPE_CHECKING:
    from headrace.server.authority import Authority
    from headrace.server.connection import Connection

log = logging.getLogger(__name__)

SCRATCH_BYTES = 64 * 1024
REFUSAL_LOG_LINES_PER_SECOND = 10  # logging costs more than refusing the connection
HELD_S = 1.0  # time for which a refused connection stays open when there are many
HELD_MAX = 1000  # refused connections that stay open; others are closed at once
HELD_CLOSE_INTERVAL_S = 0.02  # interval at which held connections are closed
HELD_CLOSED_MAX = 32  # held connections closed in one interval


class ConnectionPool:
    """State shared by all connections of a listener.

    A connection without a partial request needs no buffer: all receive into the one `scratch`, which also stays in the
    processor's cache.

    A send wakes the client, and waking costs more than sending. So with many clients the responses of one turn are sent
    together at its end: a client program with many connections is woken once for all of them.
    """

    __slots__ = (
        "_flushing",
        "_held",
        "_logged",
        "_loop",
        "_second",
        "_suppressed",
        "_turn_end",
        "authority",
        "bytes_in",
        "bytes_out",
        "connections",
        "created",
        "refused",
        "scratch",
    )

    def __init__(
        self,
        bytes_in: Counter,
        bytes_out: Counter,
        refused: Counter,
        loop: asyncio.AbstractEventLoop,
        authority: Authority,
        created: Counter | None = None,
    ) -> None:
        self.bytes_in = bytes_in
        self.bytes_out = bytes_out
        self.refused = refused
        self.created = created or Counter()
        self.authority = authority  # decides what the peers may do
        self.connections: dict[Connection, None] = {}  # oldest first; a set's order would depend on addresses
        self._loop = loop
        self._turn_end = turn_end_of(loop)
        self._flushing: list[Connection] = []
        self._held: deque[tuple[float, asyncio.Transport]] = deque()  # closing times and refused connections
        self._second = 0.0  # start of the second in which `_logged` refusals were logged
        self._logged = self._suppressed = 0  # refusals logged in that second; those not logged since the last log line
        self.renew_scratch()

    def renew_scratch(self) -> None:
        """Replace the scratch buffer, because a connection keeps the old one."""
        self.scratch = memoryview(allocate(SCRATCH_BYTES))

    def refuse(self, listener: str, address: str, reason: str) -> bool:
        """Count a refusal and log it; return False, without logging, if there were too many in this second."""
        self.refused.value += 1
        now = self._loop.time()
        if now - self._second >= 1.0:
            self._second, self._logged = now, 0
        if self._logged >= REFUSAL_LOG_LINES_PER_SECOND:
            self._suppressed += 1
            return False
        others = f" ({self._suppressed} earlier ones were not logged)" if self._suppressed else ""
        log.warning("connection from %s on %s closed: %s%s", address, listener, reason, others)
        self._logged, self._suppressed = self._logged + 1, 0
        return True

    def hold(self, transport: asyncio.Transport) -> None:
        """Keep a refused connection open, unread, for HELD_S: its client will reconnect, and accepting is expensive."""
        if len(self._held) >= HELD_MAX:
            transport.close()
            return
        transport.pause_reading()
        if not self._held:
            self._loop.call_later(HELD_S, self._close_held)
        self._held.append((self._loop.time() + HELD_S, transport))

    def _close_held(self) -> None:
        """Close held connections that are due, several at a time: a loop iteration costs more than closing one."""
        now, held = self._loop.time(), self._held
        for _ in range(HELD_CLOSED_MAX):
            if not held or held[0][0] > now:
                break
            held.popleft()[1].close()
        if held:
            self._loop.call_later(HELD_CLOSE_INTERVAL_S, self._close_held)

    def end(self) -> None:
        for connection in list(self.connections):
            connection.close()
        while self._held:
            self._held.popleft()[1].close()

    def at_turn_end(self, callback: Callable[[], None]) -> None:
        self._turn_end.call(callback)

    def flush_later(self, connection: Connection) -> None:
        if not self._flushing:
            self._turn_end.call(self._flush_all)
        self._flushing.append(connection)

    def _flush_all(self) -> None:
        flushing, self._flushing = self._flushing, []
        for connection in flushing:
            connection.flush()

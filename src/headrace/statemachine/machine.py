"""State machines without I/O: they read state and a request, emit records, and reply once those records are committed."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol, TypeVar

from headrace.statemachine.undo import UndoLog

Record = TypeVar("Record")
Record_contra = TypeVar("Record_contra", contravariant=True)
Request_contra = TypeVar("Request_contra", contravariant=True)

Arm = Callable[[Hashable, int], None]  # arguments: timer, time in ms


class Ticket:
    """Identifies the request that a reply belongs to. A later decision may reply; the first reply or failure wins."""

    __slots__ = ("_callback", "settled")

    def __init__(self, callback: Callable[[Any, Exception | None], None]) -> None:
        self._callback = callback
        self.settled = False

    def reply(self, value: Any) -> None:
        if not self.settled:
            self.settled = True
            self._callback(value, None)

    def fail(self, error: Exception) -> None:
        if not self.settled:
            self.settled = True
            self._callback(None, error)


class Decision(Protocol[Record_contra]):
    """The effects that a decision may have; all are undone if it raises."""

    ticket: Ticket

    def emit(self, record: Record_contra) -> None:
        """Apply the record to the latest state immediately and queue it for the journal."""

    def reply(self, ticket: Ticket, value: Any) -> None:
        """Send the reply once all records emitted up to the end of this decision are committed."""

    def call(self, function: Callable[[], None]) -> None:
        """Call the function once all records emitted up to the end of this decision are committed.

        It is never called if the decision is undone or leadership is lost first. Replies and calls happen in the order in which
        the decision requested them.
        """

    def next_offset(self) -> int:
        """Return the offset of the next emitted record; broker epochs are derived from it."""

    def arm(self, timer: Hashable, at_ms: int) -> None: ...

    def cancel(self, timer: Hashable) -> None: ...


class Machine(Protocol[Request_contra, Record]):
    undo: UndoLog

    def decide(self, request: Request_contra, now_ms: int, tx: Decision[Record]) -> None:
        """Decide on a request, without I/O, clock or random numbers."""

    def apply(self, record: Record, offset: int) -> None:
        """Apply a record that was emitted, loaded or replicated. Nothing else changes the state."""

    def on_timer(self, timer: Hashable, now_ms: int, tx: Decision[Record]) -> None: ...

    def on_leading(self, now_ms: int, tx: Decision[Record]) -> None:
        """Arm timers and emit the records that a new leader must write. Called once, after loading and before any request.

        If it raises, the runtime does not lead and the exception goes to the caller of `Runtime.lead`.
        """

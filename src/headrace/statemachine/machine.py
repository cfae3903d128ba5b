"""A machine decides without hands: it reads state and a request, emits records, and parks its answer until they are committed."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Protocol, TypeVar

from headrace.statemachine.undo import UndoLog

Record = TypeVar("Record")
Record_contra = TypeVar("Record_contra", contravariant=True)
Request_contra = TypeVar("Request_contra", contravariant=True)

Arm = Callable[[Hashable, int], None]  # a timer, and when


class Ticket:
    """The right to one answer. A later decision may answer it; it is told exactly once, on commit or on failure."""

    __slots__ = ("_tell", "settled")

    def __init__(self, tell: Callable[[Any, Exception | None], None]) -> None:
        self._tell = tell
        self.settled = False

    def answer(self, value: Any) -> None:
        if not self.settled:
            self.settled = True
            self._tell(value, None)

    def fail(self, error: Exception) -> None:
        if not self.settled:
            self.settled = True
            self._tell(None, error)


class Decision(Protocol[Record_contra]):
    """What a decision may do to the world; everything is taken back if it raises."""

    ticket: Ticket

    def emit(self, record: Record_contra) -> None:
        """Applied to the newest state at once, queued for the journal."""

    def reply(self, ticket: Ticket, answer: Any) -> None:
        """Leaves when everything emitted so far is committed."""

    def next_offset(self) -> int:
        """The offset that the next emitted record will have; broker epochs are made of it."""

    def arm(self, timer: Hashable, at_ms: int) -> None: ...

    def cancel(self, timer: Hashable) -> None: ...


class Machine(Protocol[Request_contra, Record]):
    undo: UndoLog

    def decide(self, request: Request_contra, now_ms: int, tx: Decision[Record]) -> None:
        """No I/O, no clock, no chance of its own."""

    def apply(self, record: Record, offset: int) -> None:
        """The only writer of state: for emitting, for loading, for followers of the journal."""

    def on_timer(self, timer: Hashable, now_ms: int, tx: Decision[Record]) -> None: ...

    def on_leading(self, now_ms: int, tx: Decision[Record]) -> None:
        """Called once after loading, when decisions become possible: arm timers, emit what a new leader must."""

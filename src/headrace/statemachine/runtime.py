"""Runs one state machine on one journal: writes its records, waits for their commit, then sends the replies."""

from __future__ import annotations

import heapq
import logging
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from headrace.base.errors import HeadraceError
from headrace.base.waiters import OffsetWaiters
from headrace.statemachine.journal import Journal, NotLeader, Overloaded
from headrace.statemachine.machine import Machine, Ticket

Record = TypeVar("Record")
Request = TypeVar("Request")

log = logging.getLogger(__name__)

TIMER_RETRY_MS = 500
PARKED_MAX = 100_000  # replies and calls waiting for a commit; further requests fail with Overloaded


class _Transaction(Generic[Record]):
    """A decision in progress; see machine.Decision."""

    def __init__(self, machine: Machine[Any, Record], ticket: Ticket, first_offset: int) -> None:
        self._machine = machine
        self.ticket = ticket
        self._next_offset = first_offset
        self.records: list[Record] = []
        # What happens when the records are committed, and when leadership is lost before that; in the order of the requests.
        self.effects: list[tuple[Callable[[], None], Callable[[Exception], None]]] = []
        self.timers: list[tuple[Hashable, int | None]] = []

    def emit(self, record: Record) -> None:
        self._machine.apply(record, self._next_offset)
        self.records.append(record)
        self._next_offset += 1

    def reply(self, ticket: Ticket, value: Any) -> None:
        self.effects.append((partial(ticket.reply, value), ticket.fail))

    def call(self, function: Callable[[], None]) -> None:
        self.effects.append((partial(_call, function), _ignore))

    def next_offset(self) -> int:
        return self._next_offset

    def arm(self, timer: Hashable, at_ms: int) -> None:
        self.timers.append((timer, at_ms))

    def cancel(self, timer: Hashable) -> None:
        self.timers.append((timer, None))


class Runtime(Generic[Request, Record]):
    """Runs a state machine: loading (following the journal) → leading → following again after losing leadership."""

    def __init__(self, machine: Machine[Request, Record], journal: Journal[Record]) -> None:
        self._machine = machine
        self._journal = journal
        self._parked = OffsetWaiters()
        self._newest_offset = -1  # last offset emitted here; later replies may depend on it and wait for its commit
        self._open: dict[Ticket, None] = {}  # tickets without a reply yet, in the order of their requests
        self._timers: dict[Hashable, int] = {}
        # Heap of timers. A timer that is moved to a later time, as sessions constantly are, is only moved when its old entry comes up.
        self._due: list[tuple[int, int, Hashable]] = []
        self._queued: dict[Hashable, tuple[int, int]] = {}  # current entry of each timer in `_due`: time, order
        self._armed = 0
        self.leading = False
        journal.on_committed(self._committed)
        journal.on_lost(self.resign)

    def follow(self, first_offset: int, records: Iterable[Record]) -> None:
        """Apply committed records that another node wrote, so that this one can take over at once."""
        assert not self.leading, "a leader applies the records that it emits"
        for offset, record in enumerate(records, first_offset):
            self._machine.apply(record, offset)

    def load(self, batches: Iterable[tuple[int, Sequence[Record]]]) -> Iterator[int]:
        """Apply the committed records of the journal, batch by batch, and yield the next offset after each batch.

        `batches` are pairs of first offset and records. The shell can run other tasks between batches.
        """
        for first, records in batches:
            self.follow(first, records)
            yield first + len(records)

    def lead(self, now_ms: int) -> None:
        """Start leading. If the state machine or the journal raises, resign and raise the same exception."""
        failures: list[Exception] = []

        def finished(value: Any, error: Exception | None) -> None:
            if error is not None:
                failures.append(error)

        self.leading = True
        self._decide(partial(self._machine.on_leading, now_ms), Ticket(finished))
        if failures:
            self.resign()
            raise failures[0]

    def submit(self, request: Request, now_ms: int, callback: Callable[[Any, Exception | None], None]) -> None:
        """Decide on a request and pass the reply or the exception to `callback` exactly once.

        A reply is passed on only after everything it depends on is committed. The exceptions of the runtime itself are NotLeader
        and Overloaded.
        """
        ticket = self._ticket(callback)
        if not self.leading:
            ticket.fail(NotLeader("this node does not lead the journal"))
        elif len(self._parked) >= PARKED_MAX:
            ticket.fail(Overloaded(f"{PARKED_MAX} replies already wait for the journal to commit their records"))
        else:
            self._decide(partial(self._machine.decide, request, now_ms), ticket)

    @property
    def is_settled(self) -> bool:
        """Return whether all visible state is committed, so that a reply based on it need not wait."""
        return self.leading and self._newest_offset <= self._journal.committed_offset()

    def _ticket(self, callback: Callable[[Any, Exception | None], None]) -> Ticket:
        """Return a ticket that fails when leadership is lost, wherever the state machine stores it."""

        def settled(value: Any, error: Exception | None) -> None:
            del self._open[ticket]
            callback(value, error)

        ticket = Ticket(settled)
        self._open[ticket] = None
        return ticket

    def next_timer(self) -> int | None:
        while self._due:
            at, order, timer = self._due[0]
            target = self._timers.get(timer)
            is_current = self._queued.get(timer) == (at, order)
            if is_current and target == at:
                return at
            heapq.heappop(self._due)
            if is_current:
                del self._queued[timer]
                if target is not None:
                    self._queue(timer, target)
        return None

    def tick(self, now_ms: int) -> None:
        while self.leading and (at := self.next_timer()) is not None and at <= now_ms:
            timer = heapq.heappop(self._due)[2]
            del self._timers[timer], self._queued[timer]
            failed = partial(self._timer_failed, timer, now_ms)
            self._decide(partial(self._machine.on_timer, timer, now_ms), Ticket(failed))

    def _timer_failed(self, timer: Hashable, now_ms: int, value: Any, error: Exception | None) -> None:
        """Rearm a timer whose decision failed, because no client retries it.

        For example, a session that could not be ended for lack of replicas must end later.
        """
        if error is None or not self.leading:
            return
        if not isinstance(error, HeadraceError):
            log.error("timer %s failed: %s", timer, error, exc_info=error)
        if timer not in self._timers:
            self.arm(timer, now_ms + TIMER_RETRY_MS)

    def _decide(self, decision: Callable[[_Transaction[Record]], None], ticket: Ticket) -> None:
        try:
            first = self._journal.next_offset()
        except NotLeader as error:
            ticket.fail(error)
            return
        tx = _Transaction(self._machine, ticket, first)
        undo = self._machine.undo
        mark = undo.begin(first)
        try:
            decision(tx)
            if tx.records:
                last = self._journal.append(tx.records)
                assert last == first + len(tx.records) - 1, (
                    f"journal wrote {last}, expected {first + len(tx.records) - 1}"
                )
                self._newest_offset = last
        except Exception as error:
            undo.rollback_to(mark)
            ticket.fail(error)
            return
        finally:
            undo.end()
        if not tx.records and self._newest_offset <= self._journal.committed_offset():
            undo.commit(first)  # no uncommitted record is left that could be rolled back
        for timer, at in tx.timers:
            self.arm(timer, at)
        self._park(tx.effects)

    def _park(self, effects: list[tuple[Callable[[], None], Callable[[Exception], None]]]) -> None:
        for on_committed, on_lost in effects:
            if self._newest_offset <= self._journal.committed_offset():
                on_committed()
            else:
                self._parked.add(self._newest_offset, on_committed, on_lost)

    def arm(self, timer: Hashable, at: int | None) -> None:
        if at is None:
            self._timers.pop(timer, None)
            return
        self._timers[timer] = at
        queued = self._queued.get(timer)
        if queued is None or at < queued[0]:
            self._queue(timer, at)

    def _queue(self, timer: Hashable, at: int) -> None:
        self._armed += 1
        self._queued[timer] = (at, self._armed)
        heapq.heappush(self._due, (at, self._armed, timer))

    def _committed(self, offset: int) -> None:
        self._machine.undo.commit(offset)
        self._parked.advance(offset)

    def resign(self) -> None:
        """Stop leading: roll back uncommitted changes, drop all timers and fail all open requests with NotLeader."""
        self.leading = False
        self._machine.undo.rollback_to(0)
        self._timers.clear()
        self._due.clear()
        self._queued.clear()
        self._newest_offset = -1
        reason = NotLeader("leadership was lost before the change was committed")
        self._parked.lose(reason)
        for ticket in list(self._open):
            ticket.fail(reason)


def _call(function: Callable[[], None]) -> None:
    """Run a function that a decision requested. Its failure must not prevent later replies."""
    try:
        function()
    except Exception:
        log.exception(
            "%r failed after the records of its decision were committed; the decision remains in effect", function
        )


def _ignore(reason: Exception) -> None:
    """Drop a call of a decision that was lost with the leadership."""

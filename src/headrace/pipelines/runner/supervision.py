"""Decides when a query is started, restarted and given up: a state machine per query, without clock or I/O.

    waiting ──Starting──▶ starting ──Started──▶ running ──Ended──▶ done
       ▲                      │                    │
       └───── back-off ───────┴────── Failed ──────┴── final error, or too many in a row ──▶ failed

    Done (a batch): starting ──▶ done
    StopRequest: waiting ──▶ stopped; starting, running ──▶ stopping ──Ended, Done, Failed──▶ stopped

The wait before a restart doubles with each failure in a row; a completed batch resets it. For external causes (brokers, a topic that does
not exist yet, a full disk), restarts continue indefinitely, unless the run is to end by itself; for errors that the query may have
caused, there are only a few.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

BACK_OFF_MS = 1_000
BACK_OFF_MS_MAX = 60_000
UNCLEAR_FAILURES_MAX = 5  # without progress in between: 15 s of back-off
BOUNDED_FAILURES_MAX = 8  # failures of any kind, for a run that is to end by itself: about two minutes


class State(Enum):
    WAITING = "waiting"  # until `due_ms`
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"  # a bounded query that has read everything
    STOPPED = "stopped"
    FAILED = "failed"  # given up


OVER = frozenset({State.DONE, State.STOPPED, State.FAILED})


class Permanence(Enum):
    """Whether another start can help."""

    FINAL = "final"  # no
    UNCLEAR = "unclear"
    TRANSIENT = "transient"  # yes, once the external cause is gone


# --- events


@dataclass(frozen=True)
class Starting:
    """The shell has begun to start the query."""


@dataclass(frozen=True)
class Started:
    pass


@dataclass(frozen=True)
class Progressed:
    """A batch is done, or there was nothing to do."""


@dataclass(frozen=True)
class Failed:
    text: str
    permanence: Permanence


@dataclass(frozen=True)
class Ended:
    """A stream has ended without an error."""


@dataclass(frozen=True)
class Done:
    """A batch query is done."""


@dataclass(frozen=True)
class StopRequest:
    pass


Event = Starting | Started | Progressed | Failed | Ended | Done | StopRequest


# --- actions


@dataclass(frozen=True)
class Start:
    pass


@dataclass(frozen=True)
class Wait:
    until_ms: int | None  # None: until an event


@dataclass(frozen=True)
class Stop:
    pass


@dataclass(frozen=True)
class GiveUp:
    reason: str


@dataclass(frozen=True)
class Over:
    pass


Act = Start | Wait | Stop | GiveUp | Over


@dataclass(frozen=True)
class Watched:
    """The state of one query."""

    is_bounded: bool
    state: State = State.WAITING
    due_ms: int = 0  # time of the next start, in state WAITING
    starts: int = 0
    failures: int = 0  # number in a row, without progress
    doubts: int = 0  # failures among them that the query may have caused
    error: str = ""  # the latest failure; cleared by progress

    @property
    def restarts(self) -> int:
        return max(0, self.starts - 1)

    @property
    def is_over(self) -> bool:
        return self.state in OVER


def act_of(query: Watched, now_ms: int) -> Act:
    match query.state:
        case State.WAITING:
            return Start() if now_ms >= query.due_ms else Wait(query.due_ms)
        case State.STOPPING:
            return Stop()
        case State.FAILED:
            return GiveUp(query.error)
        case State.STARTING | State.RUNNING:
            return Wait(None)
        case _:
            return Over()


def after(query: Watched, event: Event, now_ms: int) -> Watched:
    """Return the state after an event; late or repeated events change nothing, because Spark reports from other threads."""
    match query.state, event:
        case State.WAITING, Starting():
            return replace(query, state=State.STARTING, starts=query.starts + 1)
        case State.STARTING, Started():
            return replace(query, state=State.RUNNING)
        case State.RUNNING, Progressed():
            return replace(query, failures=0, doubts=0, error="")
        case ((State.STARTING | State.RUNNING), Failed()):
            return _after_failure(query, event, now_ms)
        case ((State.STARTING | State.RUNNING), (Ended() | Done())):
            if query.is_bounded or isinstance(event, Done):
                return replace(query, state=State.DONE, failures=0, doubts=0, error="")
            unexpected_end = Failed("it ended without having been stopped", Permanence.UNCLEAR)
            return _after_failure(query, unexpected_end, now_ms)
        case State.WAITING, StopRequest():
            return replace(query, state=State.STOPPED)
        case ((State.STARTING | State.RUNNING), StopRequest()):
            return replace(query, state=State.STOPPING)
        case State.STOPPING, (Failed() | Ended() | Done()):
            return replace(query, state=State.STOPPED)
        case _:
            return query


def back_off_ms(failures: int) -> int:
    """Return the wait before the next start after this many failures in a row."""
    doublings = min(failures - 1, BACK_OFF_MS_MAX.bit_length())
    return min(BACK_OFF_MS_MAX, BACK_OFF_MS << doublings)


def _after_failure(query: Watched, failed: Failed, now_ms: int) -> Watched:
    failures = query.failures + 1
    doubts = query.doubts + (failed.permanence is Permanence.UNCLEAR)
    query = replace(query, failures=failures, doubts=doubts, error=failed.text)
    if failed.permanence is Permanence.FINAL:
        return replace(query, state=State.FAILED)
    if doubts >= UNCLEAR_FAILURES_MAX or (query.is_bounded and failures >= BOUNDED_FAILURES_MAX):
        often = f" ({failures} failures in a row without progress)"
        return replace(query, state=State.FAILED, error=failed.text + often)
    return replace(query, state=State.WAITING, due_ms=now_ms + back_off_ms(failures))

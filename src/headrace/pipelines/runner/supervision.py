"""When a query is started, started again, and given up: a machine for each, without clock and without hands.

    waiting ──Starting──▶ starting ──Started──▶ running ──Ended──▶ done
       ▲                      │                    │
       └───── back-off ───────┴────── Failed ──────┴── what no restart can mend, or too often in a row ──▶ failed

    Done (what is no stream): starting ──▶ done
    StopAsked: waiting ──▶ stopped; starting, running ──▶ stopping ──Ended, Done, Failed──▶ stopped

A start that follows a failure waits twice as long as the one before; a batch that is done makes the wait short again. What lies outside
(brokers, a topic that is not there yet, a full disk) is waited for as long as it takes, unless the run is to end by itself; what may lie
in the query is tried a few times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

BACK_OFF_MS = 1_000
BACK_OFF_MS_MAX = 60_000
UNCLEAR_FAILURES_MAX = 5  # in a row without progress: about half a minute
BOUNDED_FAILURES_MAX = 8  # of whatever lies outside, for a run that is to end by itself: about two minutes


class State(Enum):
    WAITING = "waiting"  # until `due_ms`
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    DONE = "done"  # a bounded query that has read all there was
    STOPPED = "stopped"
    FAILED = "failed"  # given up


OVER = frozenset({State.DONE, State.STOPPED, State.FAILED})


class Mending(Enum):
    """What may be expected of another start."""

    FINAL = "final"  # nothing
    UNCLEAR = "unclear"
    PASSING = "passing"  # it goes on when what lies outside is well again


# --- what happens


@dataclass(frozen=True)
class Starting:
    """Whoever has hands begins to start it."""


@dataclass(frozen=True)
class Started:
    pass


@dataclass(frozen=True)
class Progressed:
    """A batch is done, or there was nothing to do."""


@dataclass(frozen=True)
class Failed:
    text: str
    mending: Mending


@dataclass(frozen=True)
class Ended:
    """A stream, without an error."""


@dataclass(frozen=True)
class Done:
    """What is no stream."""


@dataclass(frozen=True)
class StopAsked:
    pass


Event = Starting | Started | Progressed | Failed | Ended | Done | StopAsked


# --- what is to be done


@dataclass(frozen=True)
class Start:
    pass


@dataclass(frozen=True)
class Wait:
    until_ms: int | None  # None: for something to happen


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
    """One query."""

    is_bounded: bool
    state: State = State.WAITING
    due_ms: int = 0  # of its next start, while it waits
    starts: int = 0
    failures: int = 0  # in a row
    doubts: int = 0  # of them those that may lie in the query
    error: str = ""  # the latest failure; none once it makes progress again

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
    """What comes too late, or twice, changes nothing: Spark tells of progress and of ends in threads of its own."""
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
            unasked = Failed("it ended although nobody stopped it", Mending.UNCLEAR)
            return _after_failure(query, unasked, now_ms)
        case State.WAITING, StopAsked():
            return replace(query, state=State.STOPPED)
        case ((State.STARTING | State.RUNNING), StopAsked()):
            return replace(query, state=State.STOPPING)
        case State.STOPPING, (Failed() | Ended() | Done()):
            return replace(query, state=State.STOPPED)
        case _:
            return query


def back_off_ms(failures: int) -> int:
    """Before the start that follows so many failures in a row."""
    doublings = min(failures - 1, BACK_OFF_MS_MAX.bit_length())
    return min(BACK_OFF_MS_MAX, BACK_OFF_MS << doublings)


def _after_failure(query: Watched, failed: Failed, now_ms: int) -> Watched:
    failures = query.failures + 1
    doubts = query.doubts + (failed.mending is Mending.UNCLEAR)
    query = replace(query, failures=failures, doubts=doubts, error=failed.text)
    if failed.mending is Mending.FINAL:
        return replace(query, state=State.FAILED)
    if doubts >= UNCLEAR_FAILURES_MAX or (query.is_bounded and failures >= BOUNDED_FAILURES_MAX):
        often = f" ({failures} failures in a row without progress)"
        return replace(query, state=State.FAILED, error=failed.text + often)
    return replace(query, state=State.WAITING, due_ms=now_ms + back_off_ms(failures))

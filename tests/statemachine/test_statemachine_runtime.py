"""The runtime on a journal that commits late, refuses appends, and loses leadership."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes import FakeJournal

from headrace.statemachine.journal import NotLeader
from headrace.statemachine.machine import Decision
from headrace.statemachine.runtime import Runtime
from headrace.statemachine.undo import Table, UndoLog


class Register:
    """A key-value state machine: `set` emits, `read` reads, `bad` emits and raises, `timed` also arms a timer."""

    def __init__(self) -> None:
        self.undo = UndoLog()
        self.values: Table[str, int | str] = Table(self.undo)

    def apply(self, record: tuple[str, int | str], offset: int) -> None:
        key, value = record
        self.values[key] = value

    def decide(self, request: tuple[str, str, int | None], now_ms: int, tx: Decision[Any]) -> None:
        verb, key, value = request
        if verb == "read":
            tx.reply(tx.ticket, self.values.get(key))
            return
        tx.emit((key, value))
        if verb == "bad":
            raise ValueError("after emitting")
        if verb == "timed":
            tx.arm(("again", key), now_ms + 100)
        tx.reply(tx.ticket, "done")

    def on_timer(self, timer: Any, now_ms: int, tx: Decision[Any]) -> None:
        tx.emit((timer[1], f"timer at {now_ms}"))

    def on_leading(self, now_ms: int, tx: Decision[Any]) -> None:
        tx.emit(("leader", now_ms))


LeadingRuntime = tuple[FakeJournal[Any], Register, Runtime[Any, Any], Callable[..., None], list[Any]]


@pytest.fixture
def leading_runtime() -> LeadingRuntime:
    journal: FakeJournal[Any] = FakeJournal()
    machine = Register()
    runtime: Runtime[Any, Any] = Runtime(machine, journal)
    runtime.lead(0)
    journal.commit(0)
    replies: list[Any] = []

    def send(verb: str, key: str, value: int | None = None, now_ms: int = 0) -> None:
        runtime.submit((verb, key, value), now_ms, lambda result, error: replies.append(error or result))

    return journal, machine, runtime, send, replies


def test_replies_wait_until_the_records_they_depend_on_are_committed(
    leading_runtime: LeadingRuntime,
) -> None:
    journal, machine, _, send, replies = leading_runtime
    send("set", "x", 1)
    send("read", "x")
    assert replies == [] and machine.values["x"] == 1 and machine.values.committed("x") is None
    journal.commit(1)
    assert replies == ["done", 1] and machine.values.committed("x") == 1


def test_an_exception_undoes_the_decision_and_writes_no_records(
    leading_runtime: LeadingRuntime,
) -> None:
    journal, machine, _, send, replies = leading_runtime
    send("bad", "x", 1)
    assert isinstance(replies[0], ValueError)
    assert "x" not in machine.values and len(journal.written) == 1


def test_losing_leadership_undoes_uncommitted_records_and_fails_parked_requests(
    leading_runtime: LeadingRuntime,
) -> None:
    journal, machine, runtime, send, replies = leading_runtime
    send("set", "x", 1)
    journal.commit(1)
    send("set", "x", 2)
    send("set", "y", 3)
    journal.lose()
    assert replies[0] == "done" and all(isinstance(result, NotLeader) for result in replies[1:]) and len(replies) == 3
    assert machine.values["x"] == 1 and "y" not in machine.values and not runtime.leading
    send("read", "x")
    assert isinstance(replies[-1], NotLeader)


def test_a_timer_fires_once_and_writes_its_records_to_the_journal(
    leading_runtime: LeadingRuntime,
) -> None:
    journal, machine, runtime, send, _ = leading_runtime
    send("timed", "x", 1, now_ms=50)
    assert runtime.next_timer() == 150
    runtime.tick(149)
    assert machine.values["x"] == 1
    runtime.tick(150)
    assert machine.values["x"] == "timer at 150" and runtime.next_timer() is None
    assert list(journal.read(0))[-1][1] == [("x", "timer at 150")]


def test_loading_applies_the_journal_one_batch_at_a_time(
    leading_runtime: LeadingRuntime,
) -> None:
    journal, _, _, send, _ = leading_runtime
    for value in range(5):
        send("set", "x", value)
    follower = Register()
    runtime: Runtime[Any, Any] = Runtime(follower, journal)
    assert list(runtime.load(journal.read(0))) == [1, 2, 3, 4, 5, 6]
    assert follower.values["x"] == 4 and len(follower.undo) == 0


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.tuples(st.sampled_from(["arm", "cancel", "tick"]), st.integers(0, 4), st.integers(0, 30)), max_size=60)
)
def test_timers_fire_at_the_time_they_were_last_armed_for(steps: list[tuple[str, int, int]]) -> None:
    machine = Register()
    runtime: Runtime[Any, Any] = Runtime(machine, FakeJournal())
    runtime.lead(0)
    fired: list[Any] = []
    deadlines: dict[int, int] = {}
    now_ms = 0
    machine.on_timer = lambda timer, at_ms, tx: fired.append(timer)  # type: ignore[assignment]
    for verb, number, ms in steps:
        if verb == "arm":
            deadlines[number] = now_ms + ms
            runtime.arm(number, now_ms + ms)
        elif verb == "cancel":
            deadlines.pop(number, None)
            runtime.arm(number, None)
        else:
            now_ms += ms
            runtime.tick(now_ms)
            due = sorted((at, number) for number, at in deadlines.items() if at <= now_ms)
            assert sorted(fired) == sorted(number for _, number in due)
            assert [deadlines[number] for number in fired] == [at for at, _ in due]
            for number in fired:
                del deadlines[number]
            fired.clear()
        assert runtime.next_timer() == min(deadlines.values(), default=None)


def test_a_timer_that_is_rearmed_repeatedly_has_one_queue_entry() -> None:
    runtime: Runtime[Any, Any] = Runtime(Register(), FakeJournal())
    for at_ms in range(1000):
        runtime.arm("session", at_ms)
    assert len(runtime._due) == 1 and runtime.next_timer() == 999

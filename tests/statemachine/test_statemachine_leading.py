"""The runtime when a decision calls functions after its commit, when taking over leadership fails, and when it is overloaded."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fakes import FakeJournal
from tests.statemachine.test_statemachine_runtime import Register

from headrace.statemachine import runtime as runtime_module
from headrace.statemachine.journal import NotLeader, Overloaded
from headrace.statemachine.machine import Decision
from headrace.statemachine.runtime import Runtime


class CallingRegister(Register):
    """Sets keys as Register does; with the verb `call` (and `bad`, which raises) it also calls a function when committed."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Any] = []

    def decide(self, request: tuple[str, str, Any], now_ms: int, tx: Decision[Any]) -> None:
        verb, key, _ = request
        if verb in ("call", "bad"):
            tx.call(lambda: self.events.append(f"called for {key}"))
        elif verb == "break":
            tx.call(lambda: self.events.append(1 // 0))
        super().decide(request, now_ms, tx)


class Harness:
    def __init__(self) -> None:
        self.journal: FakeJournal[Any] = FakeJournal()
        self.machine = CallingRegister()
        self.runtime: Runtime[Any, Any] = Runtime(self.machine, self.journal)

    def lead(self) -> Harness:
        self.runtime.lead(0)
        self.journal.commit(0)
        return self

    def send(self, verb: str, key: str, value: Any = None) -> None:
        self.runtime.submit((verb, key, value), 0, lambda result, error: self.machine.events.append(error or result))


def test_a_call_runs_after_the_commit_in_the_order_of_the_decision() -> None:
    harness = Harness().lead()
    harness.send("call", "x", 1)
    harness.send("call", "y", 2)
    assert harness.machine.events == []
    harness.journal.commit(1)
    assert harness.machine.events == ["called for x", "done"]
    harness.journal.commit(2)
    assert harness.machine.events == ["called for x", "done", "called for y", "done"]


def test_a_call_is_dropped_when_its_decision_raises() -> None:
    harness = Harness().lead()
    harness.send("bad", "x", 1)
    harness.send("set", "y", 1)
    harness.journal.commit(1)
    assert [str(event) for event in harness.machine.events] == ["after emitting", "done"]


def test_a_call_is_dropped_when_leadership_is_lost_before_the_commit() -> None:
    harness = Harness().lead()
    harness.send("call", "x", 1)
    harness.journal.lose()
    assert [type(event) for event in harness.machine.events] == [NotLeader]


def test_a_call_that_raises_is_logged_and_does_not_delay_later_replies(caplog: pytest.LogCaptureFixture) -> None:
    harness = Harness().lead()
    harness.send("break", "x", 1)
    harness.send("call", "y", 1)
    harness.journal.commit(2)
    assert harness.machine.events == ["done", "called for y", "done"]
    assert [record.exc_info is not None for record in caplog.records] == [True]


def test_an_exception_while_taking_over_leadership_resigns_and_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness()

    def fail(now_ms: int, tx: Decision[Any]) -> None:
        tx.emit(("leader", now_ms))
        tx.arm("timer", 5)
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(harness.machine, "on_leading", fail)
    with pytest.raises(ZeroDivisionError):
        harness.runtime.lead(0)
    assert not harness.runtime.leading and "leader" not in harness.machine.values and not harness.journal.written
    assert harness.runtime.next_timer() is None
    harness.send("set", "x", 1)
    assert [type(event) for event in harness.machine.events] == [NotLeader]


def test_leadership_that_was_lost_before_taking_over_is_raised() -> None:
    harness = Harness()
    harness.journal.lost = True
    with pytest.raises(NotLeader):
        harness.runtime.lead(0)
    assert not harness.runtime.leading


def test_requests_beyond_the_limit_of_parked_replies_fail_as_overloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_module, "PARKED_MAX", 2)
    harness = Harness().lead()
    for value in range(3):
        harness.send("set", "x", value)
    assert [type(event) for event in harness.machine.events] == [Overloaded]
    assert "2 replies" in str(harness.machine.events[0]) and harness.machine.values["x"] == 1
    harness.journal.commit(2)
    harness.send("set", "x", 3)
    harness.journal.commit(3)
    assert harness.machine.events[1:] == ["done", "done", "done"]

"""The runtime on a journal that commits late, refuses appends, and loses leadership."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.statemachine.journal import NotLeader
from headrace.statemachine.runtime import Runtime
from headrace.statemachine.undo import Table, UndoLog


class MemoryJournal:
    def __init__(self):
        self.batches = []
        self.end = 0
        self.committed = -1
        self.leader = True
        self.tell_committed = self.tell_lost = None

    def next_offset(self):
        if not self.leader:
            raise NotLeader("elsewhere")
        return self.end

    def append(self, records):
        self.batches.append(list(records))
        self.end += len(records)
        return self.end - 1

    def committed_offset(self):
        return self.committed

    def read(self, start):
        for batch in self.batches:
            yield start, batch
            start += len(batch)

    def on_committed(self, tell):
        self.tell_committed = tell

    def on_lost(self, tell):
        self.tell_lost = tell

    def commit(self, offset):
        self.committed = offset
        self.tell_committed(offset)

    def lose(self):
        self.leader = False
        self.tell_lost()


class Register:
    """A key-value state machine: `set` emits, `read` reads, `bad` emits and raises, `timed` also arms a timer."""

    def __init__(self):
        self.undo = UndoLog()
        self.values = Table(self.undo)

    def apply(self, record, offset):
        key, value = record
        self.values[key] = value

    def decide(self, request, now_ms, tx):
        verb, key, value = request
        if verb == "read":
            return tx.reply(tx.ticket, self.values.get(key))
        tx.emit((key, value))
        if verb == "bad":
            raise ValueError("after emitting")
        if verb == "timed":
            tx.arm(("again", key), now_ms + 100)
        tx.reply(tx.ticket, "done")

    def on_timer(self, timer, now_ms, tx):
        tx.emit((timer[1], f"timer at {now_ms}"))

    def on_leading(self, now_ms, tx):
        tx.emit(("leader", now_ms))


@pytest.fixture
def stage():
    journal, machine = MemoryJournal(), Register()
    runtime = Runtime(machine, journal)
    runtime.lead(0)
    journal.commit(0)
    answers = []

    def ask(verb, key, value=None, now_ms=0):
        runtime.submit((verb, key, value), now_ms, lambda answer, error: answers.append(error or answer))

    return journal, machine, runtime, ask, answers


def test_an_answer_waits_for_its_commit_and_so_does_whoever_read_it(stage):
    journal, machine, _, ask, answers = stage
    ask("set", "x", 1)
    ask("read", "x")
    assert answers == [] and machine.values["x"] == 1 and machine.values.committed("x") is None
    journal.commit(1)
    assert answers == ["done", 1] and machine.values.committed("x") == 1


def test_an_exception_takes_back_what_was_emitted_and_writes_nothing(stage):
    journal, machine, _, ask, answers = stage
    ask("bad", "x", 1)
    assert isinstance(answers[0], ValueError)
    assert "x" not in machine.values and journal.end == 1


def test_losing_leadership_takes_back_the_uncommitted_and_fails_the_parked(stage):
    journal, machine, runtime, ask, answers = stage
    ask("set", "x", 1)
    journal.commit(1)
    ask("set", "x", 2)
    ask("set", "y", 3)
    journal.lose()
    assert answers[0] == "done" and all(isinstance(answer, NotLeader) for answer in answers[1:]) and len(answers) == 3
    assert machine.values["x"] == 1 and "y" not in machine.values and not runtime.leading
    ask("read", "x")
    assert isinstance(answers[-1], NotLeader)


def test_a_timer_fires_once_through_the_journal(stage):
    journal, machine, runtime, ask, _ = stage
    ask("timed", "x", 1, now_ms=50)
    assert runtime.next_timer() == 150
    runtime.tick(149)
    assert machine.values["x"] == 1
    runtime.tick(150)
    assert machine.values["x"] == "timer at 150" and runtime.next_timer() is None
    assert journal.batches[-1] == [("x", "timer at 150")]


def test_loading_applies_the_journal_in_slices(stage):
    journal, _, _, ask, _ = stage
    for value in range(5):
        ask("set", "x", value)
    follower = Register()
    runtime = Runtime(follower, journal)
    assert list(runtime.load(journal.read(0))) == [1, 2, 3, 4, 5, 6]
    assert follower.values["x"] == 4 and len(follower.undo) == 0


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.tuples(st.sampled_from(["arm", "cancel", "tick"]), st.integers(0, 4), st.integers(0, 30)), max_size=60)
)
def test_timers_fire_when_they_were_last_armed_for(steps):
    machine = Register()
    runtime = Runtime(machine, MemoryJournal())
    runtime.lead(0)
    fired, wanted, now_ms = [], {}, 0
    machine.on_timer = lambda timer, at_ms, tx: fired.append(timer)
    for verb, number, ms in steps:
        if verb == "arm":
            wanted[number] = now_ms + ms
            runtime.arm(number, now_ms + ms)
        elif verb == "cancel":
            wanted.pop(number, None)
            runtime.arm(number, None)
        else:
            now_ms += ms
            runtime.tick(now_ms)
            due = sorted((at, number) for number, at in wanted.items() if at <= now_ms)
            assert sorted(fired) == sorted(number for _, number in due)
            assert [wanted[number] for number in fired] == [at for at, _ in due]
            for number in fired:
                del wanted[number]
            fired.clear()
        assert runtime.next_timer() == min(wanted.values(), default=None)


def test_a_timer_that_is_moved_to_later_again_and_again_takes_one_place():
    runtime = Runtime(Register(), MemoryJournal())
    for at_ms in range(1000):
        runtime.arm("session", at_ms)
    assert len(runtime._due) == 1 and runtime.next_timer() == 999

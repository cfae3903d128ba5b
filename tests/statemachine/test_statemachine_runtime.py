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
        self.committed_callback = self.lost_callback = None

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

    def on_committed(self, callback):
        self.committed_callback = callback

    def on_lost(self, callback):
        self.lost_callback = callback

    def commit(self, offset):
        self.committed = offset
        self.committed_callback(offset)

    def lose_leadership(self):
        self.leader = False
        self.lost_callback()


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
def leading_runtime():
    journal, machine = MemoryJournal(), Register()
    runtime = Runtime(machine, journal)
    runtime.lead(0)
    journal.commit(0)
    replies = []

    def send(verb, key, value=None, now_ms=0):
        runtime.submit((verb, key, value), now_ms, lambda result, error: replies.append(error or result))

    return journal, machine, runtime, send, replies


def test_replies_wait_until_the_records_they_depend_on_are_committed(leading_runtime):
    journal, machine, _, send, replies = leading_runtime
    send("set", "x", 1)
    send("read", "x")
    assert replies == [] and machine.values["x"] == 1 and machine.values.committed("x") is None
    journal.commit(1)
    assert replies == ["done", 1] and machine.values.committed("x") == 1


def test_an_exception_undoes_the_decision_and_writes_no_records(leading_runtime):
    journal, machine, _, send, replies = leading_runtime
    send("bad", "x", 1)
    assert isinstance(replies[0], ValueError)
    assert "x" not in machine.values and journal.end == 1


def test_losing_leadership_undoes_uncommitted_records_and_fails_parked_requests(leading_runtime):
    journal, machine, runtime, send, replies = leading_runtime
    send("set", "x", 1)
    journal.commit(1)
    send("set", "x", 2)
    send("set", "y", 3)
    journal.lose_leadership()
    assert replies[0] == "done" and all(isinstance(result, NotLeader) for result in replies[1:]) and len(replies) == 3
    assert machine.values["x"] == 1 and "y" not in machine.values and not runtime.leading
    send("read", "x")
    assert isinstance(replies[-1], NotLeader)


def test_a_timer_fires_once_and_writes_its_records_to_the_journal(leading_runtime):
    journal, machine, runtime, send, _ = leading_runtime
    send("timed", "x", 1, now_ms=50)
    assert runtime.next_timer() == 150
    runtime.tick(149)
    assert machine.values["x"] == 1
    runtime.tick(150)
    assert machine.values["x"] == "timer at 150" and runtime.next_timer() is None
    assert journal.batches[-1] == [("x", "timer at 150")]


def test_loading_applies_the_journal_one_batch_at_a_time(leading_runtime):
    journal, _, _, send, _ = leading_runtime
    for value in range(5):
        send("set", "x", value)
    follower = Register()
    runtime = Runtime(follower, journal)
    assert list(runtime.load(journal.read(0))) == [1, 2, 3, 4, 5, 6]
    assert follower.values["x"] == 4 and len(follower.undo) == 0


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.tuples(st.sampled_from(["arm", "cancel", "tick"]), st.integers(0, 4), st.integers(0, 30)), max_size=60)
)
def test_timers_fire_at_the_time_they_were_last_armed_for(steps):
    machine = Register()
    runtime = Runtime(machine, MemoryJournal())
    runtime.lead(0)
    fired, deadlines, now_ms = [], {}, 0
    machine.on_timer = lambda timer, at_ms, tx: fired.append(timer)
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


def test_a_timer_that_is_rearmed_repeatedly_has_one_queue_entry():
    runtime = Runtime(Register(), MemoryJournal())
    for at_ms in range(1000):
        runtime.arm("session", at_ms)
    assert len(runtime._due) == 1 and runtime.next_timer() == 999

"""The fakes that the tests share behave like the ports they stand in for, and fail when they are told to."""

from __future__ import annotations

import asyncio
from random import Random

import pytest
from testkit.simulator.loop import SimulatedLoop
from tests.fakes import FakeClock, FakeJournal

from headrace.base.clock import Clock
from headrace.statemachine.journal import Journal, NotLeader


def journal_with_callbacks(*, commits_on_append: bool = False) -> tuple[FakeJournal[str], list[int | str]]:
    journal: FakeJournal[str] = FakeJournal(commits_on_append=commits_on_append)
    port: Journal[str] = journal
    calls: list[int | str] = []
    port.on_committed(calls.append)
    port.on_lost(lambda: calls.append("lost"))
    return journal, calls


def test_records_are_committed_by_commit_and_each_offset_is_reported_once() -> None:
    journal, calls = journal_with_callbacks()
    assert journal.append(["a", "b", "c"]) == 2 and journal.committed_offset() == -1 and journal.next_offset() == 3
    journal.commit(1)
    journal.commit(0)
    journal.commit()
    journal.commit()
    assert calls == [1, 2] and journal.committed_offset() == 2


def test_records_are_read_in_the_batches_in_which_they_were_appended() -> None:
    journal: FakeJournal[str] = FakeJournal(["a", "b"])
    journal.append(["c", "d"])
    journal.append(["e"])
    assert list(journal.read(1)) == [(1, ["b"]), (2, ["c", "d"]), (4, ["e"])]
    assert list(journal.read(5)) == []


def test_a_journal_can_commit_on_append() -> None:
    journal, calls = journal_with_callbacks(commits_on_append=True)
    journal.append(["a"])
    journal.append(["b"])
    assert calls == [0, 1]


def test_records_are_stored_encoded_and_a_journal_continues_what_was_written() -> None:
    first: FakeJournal[str] = FakeJournal(encode=str.encode)
    first.append(["a"])
    second: FakeJournal[str] = FakeJournal(first.written, encode=str.encode)
    assert second.committed_offset() == 0 and second.append(["b"]) == 1
    assert second.written == [b"a", b"b"] and first.written == [b"a"]


def test_a_refused_append_changes_nothing() -> None:
    journal, calls = journal_with_callbacks(commits_on_append=True)
    journal.refusal = OSError("the disk is full")
    with pytest.raises(OSError, match="disk is full"):
        journal.append(["a"])
    journal.refusal = None
    assert journal.append(["b"]) == 0 and journal.written == ["b"] and calls == [0]


def test_a_lost_journal_drops_uncommitted_records_and_commits_nothing_more() -> None:
    journal, calls = journal_with_callbacks()
    journal.append(["a", "b"])
    journal.commit(0)
    journal.lose()
    journal.commit()
    assert journal.written == ["a"] and calls == [0, "lost"]
    with pytest.raises(NotLeader):
        journal.next_offset()


def test_a_clock_stands_still_until_it_is_advanced() -> None:
    fake = FakeClock(1_000)
    clock: Clock = fake
    assert clock.now_ms() == clock.now_ms() == 1_000
    fake.advance(5)
    assert clock.now_ms() == 1_005
    fake.advance(-1_000)
    assert clock.now_ms() == 5


def test_a_clock_with_a_loop_follows_the_time_of_the_loop() -> None:
    loop = SimulatedLoop(Random(1))
    start = loop.time()
    clock = FakeClock(1_000, loop)
    before = clock.now_ms()
    loop.run_until_complete(asyncio.sleep(2.5))
    loop.close()
    assert loop.time() - start >= 2.5 and clock.now_ms() - before >= 2_499

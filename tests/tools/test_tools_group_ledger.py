"""The ledger of a group finds offsets that go back, and records that nobody has read."""

from __future__ import annotations

import pytest
from tools.prove.cluster.group_load import GroupLedger


@pytest.fixture
def ledger() -> GroupLedger:
    return GroupLedger("g", 2)


def test_the_next_owner_must_not_read_below_what_was_committed_before_its_assignment(ledger: GroupLedger) -> None:
    ledger.note_assigned("a", [0])
    ledger.note_consumed("a", 0, 0, 9)
    ledger.note_committed(0, 10)
    ledger.note_assigned("b", [0])
    ledger.note_consumed("b", 0, 7, 12)
    assert ledger.wrong == ["g: b read partition 0 from 7, but 10 had been committed"]


def test_records_that_were_read_but_not_committed_may_be_read_again(ledger: GroupLedger) -> None:
    ledger.note_assigned("a", [0])
    ledger.note_consumed("a", 0, 0, 9)
    ledger.note_assigned("b", [0])
    ledger.note_consumed("b", 0, 0, 9)
    assert not ledger.wrong


def test_a_commit_after_the_assignment_does_not_bind_the_owner(ledger: GroupLedger) -> None:
    ledger.note_assigned("a", [0])
    ledger.note_committed(0, 10)
    ledger.note_consumed("a", 0, 5, 9)
    assert not ledger.wrong


def test_offsets_that_no_member_has_read_are_counted(ledger: GroupLedger) -> None:
    ledger.note_consumed("a", 0, 0, 3)
    ledger.note_consumed("a", 0, 6, 9)
    assert ledger.unread({0: 10, 1: 1}) == 3


def test_stored_offsets_below_acknowledged_ones_are_found(ledger: GroupLedger) -> None:
    ledger.note_committed(0, 10)
    ledger.note_committed(0, 8)  # of a late response
    ledger.note_committed(1, 5)
    assert ledger.behind({0: 9, 1: 5}) == {0: (9, 10)}
    assert ledger.behind({}) == {0: (0, 10), 1: (0, 5)}

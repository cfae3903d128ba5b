"""The commands of the commit state machine, response by response."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from headrace.pipelines.sink import commands
from headrace.pipelines.sink import commits as sink
from headrace.pipelines.sink.commands import (
    Batch,
    Choices,
    Driver,
    End,
    Ended,
    Known,
    OnTorn,
    Progress,
    TaskTransaction,
    Warn,
)
from headrace.pipelines.sink.commits import Fate

A = TaskTransaction("p-q.run1.0.0.3", 7, 4, 0, 10, started_ms=500)
B = TaskTransaction("p-q.run1.1.0.9", 8, 0, 1, 5, started_ms=600)
DECISION = commands.Decision(
    batch=3, run="run1", token="1-1", transactions=(A, B), rows=15, decided_ms=0, closed=("run0",), prefix="p-q."
)
NEW = tuple(
    one._replace(transactional_id=one.transactional_id.replace("run1", "run2"), started_ms=-1) for one in (A, B)
)
DRIVER = Driver(1, 2)


def batch(number: int = 3, run: str = "run2", transactions: tuple[TaskTransaction, ...] = NEW) -> Batch:
    return commands.Batch(number, run, transactions, prefix="p-q.")


def ongoing(one: TaskTransaction, **more: Any) -> Known:
    return Known("Ongoing", one.producer_id, one.producer_epoch, 500, 60_000)._replace(**more)


def send_responses(conversation: Generator[Any, Any, Any], *responses: Any) -> bool | End | None:
    """Return the last command after these responses, or the result; None starts the conversation."""
    command = None
    try:
        for response in responses or (None,):
            command = conversation.send(response)
    except StopIteration as done:
        return done.value
    return command


def start_commit(
    number: int = 3, progress: Progress | None = None, choices: Choices | None = None, **more: Any
) -> tuple[Generator[Any, Any, Any], Any]:
    conversation = sink.commit(batch(number, **more), choices or commands.Choices(), now_ms=0)
    assert next(conversation) == commands.TakeOver()
    assert conversation.send(DRIVER) == commands.ReadProgress()
    return conversation, conversation.send(progress or Progress())


@pytest.mark.parametrize(
    ("known", "fate"),
    [
        (None, Fate.UNKNOWN),
        (Known("Ongoing", 7, 4, 500, 1), Fate.ONGOING),
        (Known("Ongoing", 7, 5, 500, 1), Fate.UNKNOWN),
        (Known("Ongoing", 9, 4, 500, 1), Fate.UNKNOWN),
        (Known("CompleteCommit", 7, 4, 500, 1), Fate.COMMITTED),  # before transaction version 2
        (Known("PrepareCommit", 7, 5, 500, 1), Fate.COMMITTED),
        (Known("CompleteCommit", 7, 5, 700, 1), Fate.UNKNOWN),  # another producer's transaction
        (Known("CompleteAbort", 7, 4, 500, 1), Fate.LOST),
        (Known("PrepareEpochFence", 7, 5, 500, 1), Fate.LOST),
        (Known("CompleteAbort", 7, 5, -1, 1), Fate.UNKNOWN),
        (Known("CompleteAbort", 7, 6, 500, 1), Fate.UNKNOWN),
        (Known("Empty", 7, 5, -1, 1), Fate.UNKNOWN),
        (Known("", -1, -1, -1, None), Fate.UNKNOWN),
    ],
)
def test_the_fate_of_a_transaction_follows_from_its_description(known: Known | None, fate: Fate) -> None:
    assert sink.fate_of(A, known) is fate


def test_a_commit_decides_and_finishes_its_batch_and_fences_leftover_ids() -> None:
    conversation, command = start_commit(4, Progress(DECISION, "1-1"))
    assert command == commands.ListOpen()
    left = ["p-q.run0.0.0.1", "p-q.run1.0.1.2", "p-q.run2.1.1.7", "p-q.run9.0.0.0"]
    assert conversation.send([*left, *(one.transactional_id for one in NEW)]) == commands.Describe(NEW)
    record = conversation.send((1000, [ongoing(one) for one in NEW]))
    decision = record.decision
    assert (record.driver, decision.batch, decision.run, decision.rows, decision.token) == (
        DRIVER,
        4,
        "run2",
        15,
        "1-2",
    )
    assert decision.closed == ("run0", "run1", "run9")
    assert [one.started_ms for one in decision.transactions] == [500, 500]
    assert conversation.send(None) == commands.Settle(DRIVER)
    assert conversation.send(None) == commands.Describe(decision.transactions)
    assert conversation.send((1000, [ongoing(one) for one in NEW])) == commands.End(decision.transactions, commit=True)
    assert conversation.send([Ended.DONE, Ended.DONE]) == commands.MarkFinished(decision)
    assert conversation.send(None) == commands.Fence(tuple(left))
    assert send_responses(conversation, None) is True


def test_a_replay_finishes_the_decided_batch_and_aborts_its_own_transactions() -> None:
    conversation, command = start_commit(3, Progress(DECISION, None))
    assert command == commands.Describe((A, B))
    assert conversation.send((0, [ongoing(A), Known("CompleteCommit", 8, 1, 600, 1)])) == commands.End(
        (A,), commit=True
    )
    assert conversation.send([Ended.DONE]) == commands.MarkFinished(DECISION)
    assert conversation.send(None) == commands.End(NEW, commit=False)
    with pytest.raises(StopIteration) as done:
        conversation.send([Ended.DONE, Ended.FENCED])
    assert done.value.value is False


def test_repeating_a_commit_aborts_nothing() -> None:
    conversation = sink.commit(batch(3, "run1", (A, B)), commands.Choices(), now_ms=0)
    assert send_responses(conversation, None, DRIVER, Progress(DECISION, "1-1")) is False


def test_a_replay_with_another_number_of_rows_gives_a_warning() -> None:
    _, command = start_commit(3, Progress(DECISION, "1-1"), transactions=NEW[:1])
    assert isinstance(command, commands.Warn)
    assert "with 15 rows; its replay has 10" in command.text


def test_a_batch_without_visible_rows_is_decided_again() -> None:
    conversation, _ = start_commit(3, Progress(DECISION, None))
    lost = Known("CompleteAbort", 8, 1, 600, 1)
    assert conversation.send((0, [ongoing(A), lost])) == commands.End((A,), commit=False)
    assert conversation.send([Ended.DONE]) == commands.ListOpen()


def test_a_transaction_of_unknown_fate_is_ended_before_it_counts_as_lost() -> None:
    conversation, _ = start_commit(3, Progress(DECISION, None))
    lost, unclear = Known("CompleteAbort", 7, 5, 500, 1), Known("CompleteCommit", 8, 1, -1, 1)
    assert conversation.send((0, [lost, unclear])) == commands.End((B,), commit=True)
    with pytest.raises(
        commands.TornBatch, match=r"batch 3 is torn: 1 of 2 .* p-q.run1.0.0.3 \(task 0, 10 rows\) is lost"
    ):
        conversation.send([Ended.DONE])


def torn(choices: Choices, number: int = 3) -> tuple[Generator[Any, Any, Any], Warn]:
    conversation, _ = start_commit(number, Progress(DECISION, None), choices)
    command = conversation.send((0, [Known("CompleteCommit", 7, 5, 500, 1), Known("CompleteAbort", 8, 1, 600, 1)]))
    return conversation, command


def test_a_torn_batch_raises_unless_replay_or_skip_is_chosen() -> None:
    with pytest.raises(commands.TornBatch):
        torn(commands.Choices())
    conversation, command = torn(commands.Choices(OnTorn.REPLAY))
    assert isinstance(command, commands.Warn)
    assert conversation.send(None) == commands.ListOpen()
    conversation, command = torn(commands.Choices(OnTorn.SKIP))
    assert isinstance(command, commands.Warn)
    assert conversation.send(None) == commands.MarkFinished(DECISION)
    assert conversation.send(None) == commands.End(NEW, commit=False)
    with pytest.raises(commands.TornBatch):
        torn(commands.Choices(OnTorn.REPLAY), number=4)


def test_forgotten_transactional_ids_prove_neither_commit_nor_abort() -> None:
    conversation, _ = start_commit(3, Progress(DECISION, None))
    assert conversation.send((0, [None, None])) == commands.End((A, B), commit=True)
    assert conversation.send([Ended.FENCED, Ended.FENCED]) == commands.Describe((A, B))
    assert conversation.send((0, [None, None])) == commands.ReadProgress()
    with pytest.raises(commands.TornBatch, match="is not known"):
        conversation.send(Progress(DECISION, None))


def test_a_batch_finished_by_another_driver_meanwhile_counts_as_finished() -> None:
    conversation, _ = start_commit(3, Progress(DECISION, None))
    conversation.send((0, [None, None]))
    conversation.send([Ended.FENCED, Ended.FENCED])
    conversation.send((0, [None, None]))
    assert conversation.send(Progress(DECISION, "1-1")) == commands.End(NEW, commit=False)


def test_a_commit_of_a_closed_run_raises_taken_over() -> None:
    with pytest.raises(commands.TakenOver, match="run1 has decided batch 3"):
        start_commit(4, Progress(DECISION, "1-1"), run="run0")


def test_a_changed_transactional_id_prefix_is_refused() -> None:
    with pytest.raises(commands.SinkError, match="transactionalIdPrefix must stay what it was"):
        start_commit(4, Progress(commands.Decision(3, "run1", "1-1", (), 0, 0, (), "o-q."), "1-1"))


def test_an_older_batch_raises_unless_skip_older_is_chosen() -> None:
    with pytest.raises(commands.OlderBatch, match="batch 2 comes after batch 3"):
        start_commit(2, Progress(DECISION, "1-1"))
    _, command = start_commit(2, Progress(DECISION, "1-1"), commands.Choices(skip_older=True))
    assert command == commands.End(NEW, commit=False)


@pytest.mark.parametrize(
    ("known", "words"),
    [
        (None, "is forgotten"),
        (Known("CompleteAbort", 8, 1, 600, 60_000), "is CompleteAbort at epoch 1"),
        (Known("Ongoing", 8, 0, 500, 10_000), r"1\.5 s are left of the 10 s"),
    ],
)
def test_a_batch_with_a_lost_or_expiring_transaction_is_not_decided(known: Known | None, words: str) -> None:
    conversation, _ = start_commit(4, Progress(DECISION, "1-1"))
    conversation.send([])
    with pytest.raises(commands.BatchNotDecided, match=words):
        conversation.send((9000, [ongoing(NEW[0]), known]))


def test_transactions_are_assumed_open_if_the_broker_cannot_describe_them() -> None:
    conversation, _ = start_commit(4, Progress(DECISION, "1-1"))
    conversation.send([])
    undescribed = Known(commands.UNDESCRIBED, -1, -1, -1, None)
    decision = conversation.send((0, [undescribed, undescribed])).decision
    conversation.send(None)
    conversation.send(None)
    assert conversation.send((0, [undescribed, undescribed])) == commands.End(decision.transactions, commit=True)


def test_the_number_of_remembered_closed_runs_is_limited() -> None:
    many = tuple(f"r{number}" for number in range(sink.RUNS_CLOSED_MAX))
    conversation, _ = start_commit(4, Progress(commands.Decision(3, "run1", "1-1", (), 0, 0, many, "p-q."), None))
    conversation.send([])
    closed = conversation.send((0, [ongoing(one) for one in NEW])).decision.closed
    assert closed == (*many[1:], "run1")


def test_an_empty_batch_finishes_the_last_decision_and_makes_none() -> None:
    conversation, command = start_commit(4, Progress(DECISION, None), transactions=())
    assert command == commands.Describe((A, B))
    conversation.send((0, [ongoing(A), ongoing(B)]))
    assert conversation.send([Ended.DONE, Ended.DONE]) == commands.MarkFinished(DECISION)
    assert send_responses(conversation, None) is True


def test_aborting_failed_tasks_does_not_take_over_the_sink() -> None:
    conversation = sink.abort(batch(), may_be_decided=False)
    assert send_responses(conversation) == commands.End(NEW, commit=False)
    assert send_responses(conversation, [Ended.DONE, Ended.DONE]) is None


def test_an_abort_finishes_a_batch_that_is_already_decided() -> None:
    conversation = sink.abort(batch(3, "run1", (A, B)), may_be_decided=True)
    assert next(conversation) == commands.TakeOver()
    assert conversation.send(DRIVER) == commands.ReadProgress()
    assert conversation.send(Progress(DECISION, None)) == commands.Describe((A, B))
    assert conversation.send((0, [ongoing(A), ongoing(B)])) == commands.End((A, B), commit=True)
    assert conversation.send([Ended.DONE, Ended.DONE]) == commands.MarkFinished(DECISION)
    assert conversation.send(None) == commands.ListOpen()
    assert conversation.send([A.transactional_id, "p-q.run1.5.0.1", "p-q.run8.0.0.0"]) == commands.Fence(
        ("p-q.run1.5.0.1",)
    )


def test_a_single_writer_decides_in_its_own_transaction() -> None:
    only = TaskTransaction("p-q", 1, 2, 0, 3)
    conversation = sink.commit(batch(4, transactions=(only,))._replace(driver=DRIVER), commands.Choices(), now_ms=0)
    assert next(conversation) == commands.ReadProgress()
    assert conversation.send(Progress(DECISION, "1-1")) == commands.ListOpen()
    assert conversation.send([]) == commands.Describe((only,))
    record = conversation.send((0, [ongoing(only)]))
    assert record.decision.transactions == ()
    assert conversation.send(None) == commands.Settle(DRIVER)
    assert send_responses(conversation, None) is True


def test_a_nameless_write_commits_its_open_transactions() -> None:
    conversation = sink.commit_nameless(batch())
    assert next(conversation) == commands.Describe(NEW)
    begun_at = tuple(one._replace(started_ms=500) for one in NEW)
    assert conversation.send((0, [ongoing(one) for one in NEW])) == commands.End(begun_at, commit=True)
    with pytest.raises(commands.TornBatch, match="1 of 2 transactions of this write"):
        conversation.send([Ended.DONE, Ended.REFUSED])

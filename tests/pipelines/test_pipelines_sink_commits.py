"""The commands of the commit state machine, response by response."""

import pytest

from headrace.pipelines.sink import commits as sink
from headrace.pipelines.sink.commands import Driver, Ended, Known, OnTorn, Progress, TaskTransaction
from headrace.pipelines.sink.commits import Fate

A = TaskTransaction("p-q.run1.0.0.3", 7, 4, 0, 10, started_ms=500)
B = TaskTransaction("p-q.run1.1.0.9", 8, 0, 1, 5, started_ms=600)
DECISION = sink.Decision(
    batch=3, run="run1", token="1-1", transactions=(A, B), rows=15, decided_ms=0, closed=("run0",), prefix="p-q."
)
NEW = tuple(
    one._replace(transactional_id=one.transactional_id.replace("run1", "run2"), started_ms=-1) for one in (A, B)
)
DRIVER = Driver(1, 2)


def batch(number=3, run="run2", transactions=NEW):
    return sink.Batch(number, run, transactions, prefix="p-q.")


def ongoing(one, **more):
    return Known("Ongoing", one.producer_id, one.producer_epoch, 500, 60_000)._replace(**more)


def talk(conversation, *answers):
    """Return the last command after these responses, or the result; None starts the conversation."""
    ask = None
    try:
        for answer in answers or (None,):
            ask = conversation.send(answer)
    except StopIteration as done:
        return done.value
    return ask


def begun(number=3, progress=None, choices=None, **more):
    conversation = sink.commit(batch(number, **more), choices or sink.Choices(), now_ms=0)
    assert next(conversation) == sink.TakeOver()
    assert conversation.send(DRIVER) == sink.ReadProgress()
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
def test_what_a_coordinator_says_of_a_transaction(known, fate):
    assert sink.fate_of(A, known) is fate


def test_a_batch_is_decided_finished_and_what_others_left_is_fenced():
    conversation, ask = begun(4, Progress(DECISION, "1-1"))
    assert ask == sink.ListOpen()
    left = ["p-q.run0.0.0.1", "p-q.run1.0.1.2", "p-q.run2.1.1.7", "p-q.run9.0.0.0"]
    assert conversation.send([*left, *(one.transactional_id for one in NEW)]) == sink.Describe(NEW)
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
    assert conversation.send(None) == sink.Settle(DRIVER)
    assert conversation.send(None) == sink.Describe(decision.transactions)
    assert conversation.send((1000, [ongoing(one) for one in NEW])) == sink.End(decision.transactions, commit=True)
    assert conversation.send([Ended.DONE, Ended.DONE]) == sink.MarkFinished(decision)
    assert conversation.send(None) == sink.Fence(tuple(left))
    assert talk(conversation, None) is True


def test_a_replay_is_left_out_and_what_it_repeats_is_finished_first():
    conversation, ask = begun(3, Progress(DECISION, None))
    assert ask == sink.Describe((A, B))
    assert conversation.send((0, [ongoing(A), Known("CompleteCommit", 8, 1, 600, 1)])) == sink.End((A,), commit=True)
    assert conversation.send([Ended.DONE]) == sink.MarkFinished(DECISION)
    assert conversation.send(None) == sink.End(NEW, commit=False)
    with pytest.raises(StopIteration) as done:
        conversation.send([Ended.DONE, Ended.FENCED])
    assert done.value.value is False


def test_the_same_commit_once_more_aborts_nothing():
    conversation = sink.commit(batch(3, "run1", (A, B)), sink.Choices(), now_ms=0)
    assert talk(conversation, None, DRIVER, Progress(DECISION, "1-1")) is False


def test_other_rows_in_a_replay_are_told():
    _, ask = begun(3, Progress(DECISION, "1-1"), transactions=NEW[:1])
    assert isinstance(ask, sink.Warn)
    assert "with 15 rows; its replay has 10" in ask.text


def test_a_batch_of_which_nothing_is_visible_is_decided_anew():
    conversation, _ = begun(3, Progress(DECISION, None))
    lost = Known("CompleteAbort", 8, 1, 600, 1)
    assert conversation.send((0, [ongoing(A), lost])) == sink.End((A,), commit=False)
    assert conversation.send([Ended.DONE]) == sink.ListOpen()


def test_what_is_not_known_is_asked_before_it_counts_as_lost():
    conversation, _ = begun(3, Progress(DECISION, None))
    lost, unclear = Known("CompleteAbort", 7, 5, 500, 1), Known("CompleteCommit", 8, 1, -1, 1)
    assert conversation.send((0, [lost, unclear])) == sink.End((B,), commit=True)
    with pytest.raises(sink.TornBatch, match=r"batch 3 is torn: 1 of 2 .* p-q.run1.0.0.3 \(task 0, 10 rows\) is lost"):
        conversation.send([Ended.DONE])


def torn(choices, number=3):
    conversation, _ = begun(number, Progress(DECISION, None), choices)
    ask = conversation.send((0, [Known("CompleteCommit", 7, 5, 500, 1), Known("CompleteAbort", 8, 1, 600, 1)]))
    return conversation, ask


def test_a_torn_batch_is_an_error_unless_the_user_decides():
    with pytest.raises(sink.TornBatch):
        torn(sink.Choices())
    conversation, ask = torn(sink.Choices(OnTorn.REPLAY))
    assert isinstance(ask, sink.Warn)
    assert conversation.send(None) == sink.ListOpen()
    conversation, ask = torn(sink.Choices(OnTorn.SKIP))
    assert isinstance(ask, sink.Warn)
    assert conversation.send(None) == sink.MarkFinished(DECISION)
    assert conversation.send(None) == sink.End(NEW, commit=False)
    with pytest.raises(sink.TornBatch):
        torn(sink.Choices(OnTorn.REPLAY), number=4)


def test_ids_that_were_forgotten_are_no_proof_of_anything():
    conversation, _ = begun(3, Progress(DECISION, None))
    assert conversation.send((0, [None, None])) == sink.End((A, B), commit=True)
    assert conversation.send([Ended.FENCED, Ended.FENCED]) == sink.Describe((A, B))
    assert conversation.send((0, [None, None])) == sink.ReadProgress()
    with pytest.raises(sink.TornBatch, match="is not known"):
        conversation.send(Progress(DECISION, None))


def test_what_another_driver_has_finished_meanwhile_is_finished():
    conversation, _ = begun(3, Progress(DECISION, None))
    conversation.send((0, [None, None]))
    conversation.send([Ended.FENCED, Ended.FENCED])
    conversation.send((0, [None, None]))
    assert conversation.send(Progress(DECISION, "1-1")) == sink.End(NEW, commit=False)


def test_a_closed_run_decides_nothing():
    with pytest.raises(sink.TakenOver, match="run1 has decided batch 3"):
        begun(4, Progress(DECISION, "1-1"), run="run0")


def test_a_sink_keeps_its_prefix():
    with pytest.raises(sink.SinkError, match="transactionalIdPrefix must stay what it was"):
        begun(4, Progress(sink.Decision(3, "run1", "1-1", (), 0, 0, (), "o-q."), "1-1"))


def test_a_checkpoint_that_was_set_back_is_an_error_unless_the_user_decides():
    with pytest.raises(sink.OlderBatch, match="batch 2 comes after batch 3"):
        begun(2, Progress(DECISION, "1-1"))
    _, ask = begun(2, Progress(DECISION, "1-1"), sink.Choices(skip_older=True))
    assert ask == sink.End(NEW, commit=False)


@pytest.mark.parametrize(
    ("known", "words"),
    [
        (None, "is forgotten"),
        (Known("CompleteAbort", 8, 1, 600, 60_000), "is CompleteAbort at epoch 1"),
        (Known("Ongoing", 8, 0, 500, 10_000), r"1\.5 s are left of the 10 s"),
    ],
)
def test_a_batch_that_cannot_be_whole_is_not_decided(known, words):
    conversation, _ = begun(4, Progress(DECISION, "1-1"))
    conversation.send([])
    with pytest.raises(sink.BatchNotDecided, match=words):
        conversation.send((9000, [ongoing(NEW[0]), known]))


def test_brokers_that_tell_nothing_of_transactions_are_believed():
    conversation, _ = begun(4, Progress(DECISION, "1-1"))
    conversation.send([])
    untold = Known(sink.UNTOLD, -1, -1, -1, None)
    decision = conversation.send((0, [untold, untold])).decision
    conversation.send(None)
    conversation.send(None)
    assert conversation.send((0, [untold, untold])) == sink.End(decision.transactions, commit=True)


def test_closed_runs_are_not_remembered_for_ever():
    many = tuple(f"r{number}" for number in range(sink.RUNS_CLOSED_MAX))
    conversation, _ = begun(4, Progress(sink.Decision(3, "run1", "1-1", (), 0, 0, many, "p-q."), None))
    conversation.send([])
    closed = conversation.send((0, [ongoing(one) for one in NEW])).decision.closed
    assert closed == (*many[1:], "run1")


def test_an_empty_batch_finishes_what_was_decided_and_decides_nothing():
    conversation, ask = begun(4, Progress(DECISION, None), transactions=())
    assert ask == sink.Describe((A, B))
    conversation.send((0, [ongoing(A), ongoing(B)]))
    assert conversation.send([Ended.DONE, Ended.DONE]) == sink.MarkFinished(DECISION)
    assert talk(conversation, None) is True


def test_tasks_that_failed_are_aborted_without_taking_the_sink_from_anybody():
    conversation = sink.abort(batch(), may_be_decided=False)
    assert talk(conversation) == sink.End(NEW, commit=False)
    assert talk(conversation, [Ended.DONE, Ended.DONE]) is None


def test_a_commit_that_failed_after_its_decision_is_finished_by_the_abort():
    conversation = sink.abort(batch(3, "run1", (A, B)), may_be_decided=True)
    assert next(conversation) == sink.TakeOver()
    assert conversation.send(DRIVER) == sink.ReadProgress()
    assert conversation.send(Progress(DECISION, None)) == sink.Describe((A, B))
    assert conversation.send((0, [ongoing(A), ongoing(B)])) == sink.End((A, B), commit=True)
    assert conversation.send([Ended.DONE, Ended.DONE]) == sink.MarkFinished(DECISION)
    assert conversation.send(None) == sink.ListOpen()
    assert conversation.send([A.transactional_id, "p-q.run1.5.0.1", "p-q.run8.0.0.0"]) == sink.Fence(
        ("p-q.run1.5.0.1",)
    )


def test_a_single_writer_decides_in_its_own_transaction():
    only = TaskTransaction("p-q", 1, 2, 0, 3)
    conversation = sink.commit(batch(4, transactions=(only,))._replace(driver=DRIVER), sink.Choices(), now_ms=0)
    assert next(conversation) == sink.ReadProgress()
    assert conversation.send(Progress(DECISION, "1-1")) == sink.ListOpen()
    assert conversation.send([]) == sink.Describe((only,))
    record = conversation.send((0, [ongoing(only)]))
    assert record.decision.transactions == ()
    assert conversation.send(None) == sink.Settle(DRIVER)
    assert talk(conversation, None) is True


def test_a_write_without_a_name_commits_what_is_open():
    conversation = sink.commit_nameless(batch())
    assert next(conversation) == sink.Describe(NEW)
    begun_at = tuple(one._replace(started_ms=500) for one in NEW)
    assert conversation.send((0, [ongoing(one) for one in NEW])) == sink.End(begun_at, commit=True)
    with pytest.raises(sink.TornBatch, match="1 of 2 transactions of this write"):
        conversation.send([Ended.DONE, Ended.REFUSED])

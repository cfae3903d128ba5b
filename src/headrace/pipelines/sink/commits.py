"""The commit state machine of a write: exactly-once over many transactions, as generators that yield commands to a shell.

Every task writes in its own transaction and leaves it open. The driver then writes one record, the decision, which says that exactly these
transactions make up the batch, and ends them. The decision is written in a transaction of the driver's transactional id:

 1. Taking over that id fences its previous owner and ends the owner's open transaction. Decisions read AFTER that stay current until
    another driver takes over, and then this driver can decide nothing more. So decisions are totally ordered.
 2. A decided batch is finished by the next driver, until each of its transactions has ended; ending one twice is harmless.
    An undecided batch never becomes visible: no driver commits a transaction that no decision names.
 3. A run (one start of a query) that another run has closed decides nothing. A decision closes the run before it and all runs whose
    open transactions it found; only THEN are those fenced. So a slow driver that fences late cannot fence a decided transaction.
 4. A decided transaction may still be lost: the coordinator aborts a transaction that exceeds its timeout. If nothing of the batch is
    visible, the other transactions are aborted too, and the batch is decided again when it is replayed. If some of it is visible, the
    batch is torn, and TornBatch is raised unless the option onTornBatch says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from headrace.pipelines.sink.commands import (
    ONGOING,
    UNDESCRIBED,
    Batch,
    BatchNotDecided,
    Choices,
    Conversation,
    Decision,
    Describe,
    End,
    Ended,
    Fence,
    Known,
    ListOpen,
    MarkFinished,
    OlderBatch,
    OnTorn,
    Progress,
    ReadProgress,
    Record,
    Settle,
    SinkError,
    TakenOver,
    TakeOver,
    TaskTransaction,
    TornBatch,
    Warn,
)

RUNS_CLOSED_MAX = 200  # number remembered; transactions of an older run have timed out
MARGIN_MS_MAX = 30_000  # time a transaction must have left when it is decided, or a fifth of its timeout if less
MARGIN_SHARE = 5
_COMMITTED = ("PrepareCommit", "CompleteCommit")
_ABORTED = ("PrepareAbort", "CompleteAbort", "PrepareEpochFence")


# --- a batch of a stream, or of a write with a name


def commit(batch: Batch, choices: Choices, now_ms: int) -> Conversation[bool]:
    """Return False if the batch was already written; raise SinkError unless the whole batch is certain to be written."""
    driver = batch.driver
    if driver is None:
        driver = yield TakeOver()
    progress: Progress = yield ReadProgress()
    last = progress.decision
    if last is not None and last.prefix != batch.prefix:
        raise SinkError(
            f"transactional ids of this sink begin with {last.prefix!r} and cannot begin with {batch.prefix!r} from now on: the "
            "option transactionalIdPrefix must stay what it was"
        )
    if last is not None and batch.run in last.closed:
        raise TakenOver(f"another run of this query has taken over: {last.run} has decided batch {last.batch}")
    may_decide = yield from _look_back(batch, progress, choices)
    if not may_decide or not batch.transactions:
        yield from _abort_own(batch, last)
        return may_decide
    open_ids: list[str] = yield ListOpen()
    transactions = yield from _all_ongoing(batch)
    closed = _closed(batch, last, open_ids)
    decision = Decision(
        batch=batch.number,
        run=batch.run,
        token=f"{driver.producer_id}-{driver.producer_epoch}",
        # The transaction of a single writer ends together with the decision.
        transactions=() if batch.driver is not None else transactions,
        rows=sum(one.rows for one in batch.transactions),
        decided_ms=now_ms,
        closed=closed,
        prefix=batch.prefix,
    )
    yield Record(driver, decision)
    yield Settle(driver)
    if decision.transactions and not (yield from _finish(decision)):
        raise BatchNotDecided(
            f"batch {batch.number} was lost as a whole right after it was decided; it is replayed and decided again"
        )
    ours = {one.transactional_id for one in batch.transactions}
    left = tuple(one for one in open_ids if one not in ours and batch.run_of(one) in (batch.run, *closed))
    if left:
        yield Fence(left)
    return True


def abort(batch: Batch, *, may_be_decided: bool) -> Conversation[None]:
    """Clean up after a failed commit or instead of one; a batch that was decided nevertheless is finished."""
    decision: Decision | None = None
    # A single writer's transaction contains the decision, and both are aborted or neither is.
    may_be_decided &= batch.driver is None
    if may_be_decided:
        yield TakeOver()  # otherwise a decision in progress could be written after we have read
        progress: Progress = yield ReadProgress()
        decision = progress.decision
        unfinished = progress.unfinished
        is_ours = unfinished is not None and (unfinished.run, unfinished.batch) == (batch.run, batch.number)
        if unfinished is not None and is_ours and not (yield from _finish(unfinished)):
            yield Warn(f"batch {batch.number} was decided and then lost as a whole; it will be replayed")
    yield from _abort_own(batch, decision)
    if may_be_decided:
        named = set() if decision is None else {one.transactional_id for one in decision.transactions}
        open_ids: list[str] = yield ListOpen()
        left = tuple(one for one in open_ids if batch.run_of(one) == batch.run and one not in named)
        if left:
            yield Fence(left)


def _look_back(batch: Batch, progress: Progress, choices: Choices) -> Conversation[bool]:
    """Finish the last decision; return whether this batch remains to be decided."""
    last = progress.decision
    if last is None:
        return True
    if batch.number < last.batch and not choices.skip_older:
        raise OlderBatch(
            f"batch {batch.number} comes after batch {last.batch} was written: the checkpoint was set back, and what this batch "
            "holds may be there already or not; skipOlderBatches=true leaves all up to that one out"
        )
    replayed = batch.number == last.batch
    if progress.unfinished is not None:
        try:
            finished = yield from _finish(last)
            if not finished and not replayed:
                raise TornBatch(
                    f"batch {last.batch} was decided and then lost as a whole, and Spark does not replay it"
                )
        except TornBatch as torn:
            if choices.on_torn is OnTorn.FAIL or (choices.on_torn is OnTorn.REPLAY and not replayed):
                raise
            finished = choices.on_torn is OnTorn.SKIP
            yield Warn(f"onTornBatch={choices.on_torn.value}: {torn}")
            if finished:
                yield MarkFinished(last)
        if not finished:
            return True
    if replayed and last.rows != sum(one.rows for one in batch.transactions):
        yield Warn(
            f"batch {batch.number} was written with {last.rows} rows; its replay has "
            f"{sum(one.rows for one in batch.transactions)}, which are left out: the query gives other rows each time"
        )
    return batch.number > last.batch


def _abort_own(batch: Batch, last: Decision | None) -> Conversation[None]:
    """Abort the batch's transactions, except those that a decision names."""
    named = set() if last is None else {_identity(one) for one in last.transactions}
    own = tuple(one for one in batch.transactions if _identity(one) not in named)
    if own:
        yield End(own, commit=False)


def _all_ongoing(batch: Batch) -> Conversation[tuple[TaskTransaction, ...]]:
    """Return the batch's transactions with start times; raise BatchNotDecided if one is not open or close to its timeout."""
    if not batch.transactions:
        return ()
    now_ms, found = yield Describe(batch.transactions)
    begun = []
    for one, known in zip(batch.transactions, found, strict=True):
        if known is None or (known.state != UNDESCRIBED and fate_of(one, known) is not Fate.ONGOING):
            what = "forgotten" if known is None else f"{known.state} at epoch {known.producer_epoch}"
            raise BatchNotDecided(
                f"batch {batch.number}: the transaction {one} of epoch {one.producer_epoch} is {what}"
            )
        if known.timeout_ms is not None and known.started_ms >= 0:
            left_ms = known.started_ms + known.timeout_ms - now_ms
            if left_ms < min(MARGIN_MS_MAX, known.timeout_ms // MARGIN_SHARE):
                raise BatchNotDecided(
                    f"batch {batch.number}: {left_ms / 1000:g} s are left of the {known.timeout_ms / 1000:g} s of transaction {one}; "
                    "give kafka.transaction.timeout.ms more, or a batch less to do"
                )
        begun.append(one._replace(started_ms=known.started_ms))
    return tuple(begun)


def _closed(batch: Batch, last: Decision | None, open_ids: Sequence[str]) -> tuple[str, ...]:
    """Return the closed runs: those closed before, plus all other runs that have decided or have an open transaction."""
    runs = list(last.closed) if last is not None else []
    for run in (*([last.run] if last is not None else []), *map(batch.run_of, open_ids)):
        if run != batch.run and run not in runs:
            runs.append(run)
    return tuple(runs[-RUNS_CLOSED_MAX:])


# --- finishing


class Fate(Enum):
    ONGOING = "still open"
    COMMITTED = "visible"
    LOST = "lost"
    UNKNOWN = "not known"


_BY_COMMIT = {Ended.DONE: Fate.COMMITTED, Ended.REFUSED: Fate.LOST, Ended.FENCED: Fate.UNKNOWN}
_BY_ABORT = {Ended.DONE: Fate.LOST, Ended.REFUSED: Fate.COMMITTED, Ended.FENCED: Fate.UNKNOWN}


def fate_of(transaction: TaskTransaction, known: Known | None) -> Fate:
    """Return what became of the transaction, given its coordinator's description of the transactional id.

    An id that has moved on to another transaction says nothing about this one, unless it is at the next epoch, to which a timeout (and
    with KIP-890 also a commit) takes it, and has the same start time.
    """
    if known is None or known.producer_id != transaction.producer_id:
        return Fate.UNKNOWN
    ahead = known.producer_epoch - transaction.producer_epoch
    if ahead == 0 and known.state == ONGOING:
        return Fate.ONGOING
    if ahead == 0 or (ahead == 1 and known.started_ms == transaction.started_ms >= 0):
        if known.state in _COMMITTED:
            return Fate.COMMITTED
        if known.state in _ABORTED:
            return Fate.LOST
    return Fate.UNKNOWN


def _finish(decision: Decision) -> Conversation[bool]:
    """Carry out a decision; return False if no part of it is or will be visible; raise TornBatch if only a part is, or may be.

    The fates are checked even if all transactions were open a moment ago: if the driver was suspended meanwhile, the oldest may have timed
    out while none is visible yet.
    """
    _, found = yield Describe(decision.transactions)
    fates = {one: fate_of(one, known) for one, known in zip(decision.transactions, found, strict=True)}
    is_undescribed = any(known is not None and known.state == UNDESCRIBED for known in found)
    if not is_undescribed and Fate.LOST in fates.values() and Fate.COMMITTED not in fates.values():
        # As far as is known, nothing is visible yet. Committing those that are no longer open is harmless.
        fates.update((yield from _end(_with(fates, Fate.UNKNOWN), commit=True)))
        if not {Fate.COMMITTED, Fate.UNKNOWN} & set(fates.values()):
            fates.update((yield from _end(_with(fates, Fate.ONGOING), commit=False)))
            return (yield from _conclude(decision, fates))
    fates.update((yield from _end(_with(fates, Fate.ONGOING, Fate.UNKNOWN), commit=True)))
    return (yield from _conclude(decision, fates))


def _with(fates: dict[TaskTransaction, Fate], *selected: Fate) -> dict[TaskTransaction, Fate]:
    return {one: fate for one, fate in fates.items() if fate in selected}


def _end(fates: dict[TaskTransaction, Fate], *, commit: bool) -> Conversation[dict[TaskTransaction, Fate]]:
    if not fates:
        return {}
    transactions = tuple(fates)
    ended = yield End(transactions, commit)
    meaning = _BY_COMMIT if commit else _BY_ABORT
    return {one: meaning[how] for one, how in zip(transactions, ended, strict=True)}


def _conclude(decision: Decision, fates: dict[TaskTransaction, Fate]) -> Conversation[bool]:
    unknown = tuple(_with(fates, Fate.UNKNOWN))
    if unknown:
        _, found = yield Describe(unknown)
        fates |= {one: fate_of(one, known) for one, known in zip(unknown, found, strict=True)}
    present = set(fates.values())
    if Fate.UNKNOWN in present:
        # Another driver that has finished this decision records that BEFORE it reuses the transactional ids.
        progress: Progress = yield ReadProgress()
        if progress.finished == decision.token:
            return True
        if progress.decision is not None and progress.decision.token != decision.token:
            raise TakenOver(
                f"another run of this query has taken over: {progress.decision.run} continues after this batch"
            )
    if present == {Fate.COMMITTED}:
        yield MarkFinished(decision)
        return True
    if present == {Fate.LOST}:
        return False
    outcome = "; ".join(f"{one} is {fate.value}" for one, fate in fates.items() if fate is not Fate.COMMITTED)
    visible = len(_with(fates, Fate.COMMITTED))
    raise TornBatch(
        f"batch {decision.batch} is torn: {visible} of {len(fates)} transactions are visible, but {outcome}. They were decided, and ended "
        "by others before they could be committed (kafka.transaction.timeout.ms, most likely). onTornBatch=replay writes the batch "
        "again as a whole, onTornBatch=skip continues without the lost rows"
    )


def _identity(transaction: TaskTransaction) -> tuple[str, int, int]:
    return transaction[:3]


# --- a write without a name: no later driver could look for its decision


def commit_nameless(batch: Batch) -> Conversation[bool]:
    transactions = yield from _all_ongoing(batch)
    fates = yield from _end(dict.fromkeys(transactions, Fate.ONGOING), commit=True)
    lost = [f"{one} is {fate.value}" for one, fate in fates.items() if fate is not Fate.COMMITTED]
    if lost:
        raise TornBatch(f"{len(lost)} of {len(fates)} transactions of this write were not committed: {'; '.join(lost)}")
    return True

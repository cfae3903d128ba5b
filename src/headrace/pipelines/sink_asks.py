"""What the driver of a write knows, what it asks of whoever has hands, and how it fails."""

from __future__ import annotations

from collections.abc import Generator
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct

from headrace.base.errors import HeadraceError

ONGOING = "Ongoing"
UNTOLD = ""  # the state in which brokers before Kafka 3.0 have every transaction


class SinkError(HeadraceError):
    """A write that cannot go on; the text says why, and what to do."""


class BatchNotDecided(SinkError):
    """Nothing of it is visible; replayed, it has another chance."""


class TakenOver(SinkError):
    """Another run of the same query writes now."""


class OlderBatch(SinkError):
    """The checkpoint was set back."""


class TornBatch(SinkError):
    """Some of a batch is visible, and some was lost."""


class OnTorn(Enum):
    FAIL = "fail"
    REPLAY = "replay"  # what is visible of it will be there twice
    SKIP = "skip"  # what was lost of it stays lost


class TaskTransaction(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    partition: int  # Spark's
    rows: int
    started_ms: int = -1  # by its coordinator, as it was when the batch was decided

    def __str__(self) -> str:
        return f"{self.transactional_id} (task {self.partition}, {self.rows} rows)"


class Decision(Struct, frozen=True):
    batch: int
    run: str
    token: str  # of this very decision
    transactions: tuple[TaskTransaction, ...]
    rows: int
    decided_ms: int
    closed: tuple[str, ...] = ()  # runs, the latest last
    prefix: str = ""  # of the transactional ids: whoever has another one fences nobody


class Progress(NamedTuple):
    decision: Decision | None = None
    finished: str | None = None  # the token of the latest decision that is known to be carried out

    @property
    def unfinished(self) -> Decision | None:
        decision = self.decision
        return decision if decision is not None and decision.transactions and decision.token != self.finished else None


class Known(NamedTuple):
    """What a coordinator says of a transactional id."""

    state: str
    producer_id: int
    producer_epoch: int
    started_ms: int
    timeout_ms: int | None


class Driver(NamedTuple):
    producer_id: int
    producer_epoch: int


class Ended(Enum):
    DONE = "done"  # now or before
    REFUSED = "refused"  # it was ended the other way
    FENCED = "fenced"  # it is not the latest of its transactional id any more


class Batch(NamedTuple):
    """One batch as one run has written it."""

    number: int
    run: str
    transactions: tuple[TaskTransaction, ...]
    driver: Driver | None = None  # given if the only task wrote in the driver's own transaction, which is still open
    prefix: str = ""  # of the transactional ids of all tasks of this sink: the run comes next, up to a dot

    def run_of(self, transactional_id: str) -> str:
        return transactional_id.removeprefix(self.prefix).partition(".")[0]


class Choices(NamedTuple):
    on_torn: OnTorn = OnTorn.FAIL
    skip_older: bool = False


# --- what is asked of the shell, each with its answer


class TakeOver(NamedTuple):
    """Driver: initialized anew."""


class ReadProgress(NamedTuple):
    """Progress: all that is committed."""


class ListOpen(NamedTuple):
    """list[str]: transactional ids of tasks of this sink, of whatever run, that have something open."""


class Describe(NamedTuple):
    """(now_ms, list[Known | None]): None for an id that is not known."""

    transactions: tuple[TaskTransaction, ...]


class Record(NamedTuple):
    """None: the decision is written, in the driver's transaction."""

    driver: Driver
    decision: Decision


class Settle(NamedTuple):
    """None: the driver's transaction is committed."""

    driver: Driver


class End(NamedTuple):
    """list[Ended]."""

    transactions: tuple[TaskTransaction, ...]
    commit: bool


class MarkFinished(NamedTuple):
    """None."""

    decision: Decision


class Fence(NamedTuple):
    """None: what these have open is aborted. What cannot be reached is left to its timeout."""

    transactional_ids: tuple[str, ...]


class Warn(NamedTuple):
    """None."""

    text: str


T = TypeVar("T")
Conversation = Generator[Any, Any, T]

"""State and commands of the sink's commit state machine, and its errors."""

from __future__ import annotations

from collections.abc import Generator
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from msgspec import Struct

from headrace.base.errors import HeadraceError

ONGOING = "Ongoing"
UNDESCRIBED = ""  # placeholder: brokers before Kafka 3.0 cannot describe transactions


class SinkError(HeadraceError):
    """A write that cannot continue; the text says why and what to do."""


class BatchNotDecided(SinkError):
    """No row of the batch is visible; replaying it may succeed."""


class TakenOver(SinkError):
    """Another run of the same query is writing now."""


class OlderBatch(SinkError):
    """The checkpoint was reset to an earlier batch."""


class TornBatch(SinkError):
    """Part of a batch is visible and part is lost."""


class OnTorn(Enum):
    FAIL = "fail"
    REPLAY = "replay"  # visible rows of the batch will be duplicated
    SKIP = "skip"  # lost rows of the batch stay lost


class TaskTransaction(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    partition: int  # partition number of Spark's task
    rows: int
    started_ms: int = -1  # start time according to the coordinator when the batch was decided

    def __str__(self) -> str:
        return f"{self.transactional_id} (task {self.partition}, {self.rows} rows)"


class Decision(Struct, frozen=True):
    batch: int
    run: str
    token: str  # unique id of this decision
    transactions: tuple[TaskTransaction, ...]
    rows: int
    decided_ms: int
    closed: tuple[str, ...] = ()  # runs that may no longer decide anything, latest last
    prefix: str = ""  # prefix of the transactional ids; a run with another prefix could not fence this one


class Progress(NamedTuple):
    decision: Decision | None = None
    finished: str | None = None  # token of the latest decision known to be carried out

    @property
    def unfinished(self) -> Decision | None:
        decision = self.decision
        return decision if decision is not None and decision.transactions and decision.token != self.finished else None


class Known(NamedTuple):
    """A coordinator's description of a transactional id."""

    state: str
    producer_id: int
    producer_epoch: int
    started_ms: int
    timeout_ms: int | None


class Driver(NamedTuple):
    producer_id: int
    producer_epoch: int


class Ended(Enum):
    DONE = "done"  # ended this way, now or earlier
    REFUSED = "refused"  # ended the other way
    FENCED = "fenced"  # superseded by a later transaction of the same transactional id


class Batch(NamedTuple):
    """One batch as written by one run."""

    number: int
    run: str
    transactions: tuple[TaskTransaction, ...]
    driver: Driver | None = None  # set if the only task wrote in the driver's own transaction, which is still open
    prefix: str = ""  # prefix of the transactional ids of all tasks of this sink; the run follows, up to a dot

    def run_of(self, transactional_id: str) -> str:
        return transactional_id.removeprefix(self.prefix).partition(".")[0]


class Choices(NamedTuple):
    on_torn: OnTorn = OnTorn.FAIL
    skip_older: bool = False


# --- commands to the shell; each docstring starts with the type of the result


class TakeOver(NamedTuple):
    """Driver: the driver's producer, newly initialized."""


class ReadProgress(NamedTuple):
    """Progress: everything committed so far."""


class ListOpen(NamedTuple):
    """list[str]: transactional ids of this sink's tasks, of any run, that have an open transaction."""


class Describe(NamedTuple):
    """(now_ms, list[Known | None]): None for an unknown id."""

    transactions: tuple[TaskTransaction, ...]


class Record(NamedTuple):
    """None: the decision is written in the driver's transaction."""

    driver: Driver
    decision: Decision


class Settle(NamedTuple):
    """None: the driver's transaction is committed."""

    driver: Driver


class End(NamedTuple):
    """list[Ended]: the outcome for each transaction."""

    transactions: tuple[TaskTransaction, ...]
    commit: bool


class MarkFinished(NamedTuple):
    """None: the decision is recorded as carried out."""

    decision: Decision


class Fence(NamedTuple):
    """None: the open transactions of these ids are aborted; those whose coordinator cannot be reached are left to time out."""

    transactional_ids: tuple[str, ...]


class Warn(NamedTuple):
    """None: the text is logged."""

    text: str


T = TypeVar("T")
Conversation = Generator[Any, Any, T]

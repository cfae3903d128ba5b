"""The state machine of one partition of __transaction_state, which holds the transactional ids that hash to it.

The shard only routes requests and timers to handlers. A decision sees the newest state at once and its response waits for the commit, so
no client has to retry because a write is in progress; Kafka's pending states have no counterpart here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from headrace.base.errors import ErrorCode, KafkaError
from headrace.coordinators.transaction.ending import begin_endings, end_transaction, on_markers_written
from headrace.coordinators.transaction.expiry import (
    EXPIRY_SWEEP,
    TIMED_OUT,
    TIMEOUT_SWEEP,
    begin_sweeps,
    on_expiry_sweep,
    on_timed_out,
    on_timeout_sweep,
)
from headrace.coordinators.transaction.fencing import EpochCause, FencingLog, ProducerFenced
from headrace.coordinators.transaction.init import init_producer
from headrace.coordinators.transaction.partitions import add_partitions
from headrace.coordinators.transaction.records import TransactionRecord
from headrace.coordinators.transaction.request import (
    AddPartitions,
    EndTransaction,
    InitProducer,
    Markers,
    MarkersWritten,
)
from headrace.coordinators.transaction.settings import TransactionSettings
from headrace.coordinators.transaction.state import Transaction, TransactionTables, record_of
from headrace.coordinators.transaction.states import BEFORE, State
from headrace.statemachine.machine import Decision
from headrace.statemachine.undo import UndoLog

Tx = Decision[TransactionRecord]
RequestHandler = Callable[["TransactionShard", Any, int, Tx], None]  # takes the request or the timer
TransactionRequest = InitProducer | AddPartitions | EndTransaction | MarkersWritten
EPOCH_BUMP_VERSION_MIN = 2  # transaction version from which each transaction has a new epoch (KIP-890)

REQUEST_HANDLERS: dict[type[Any], RequestHandler] = {
    InitProducer: init_producer,
    AddPartitions: add_partitions,
    EndTransaction: end_transaction,
    MarkersWritten: on_markers_written,
}
TIMER_HANDLERS: dict[str, RequestHandler] = {
    TIMEOUT_SWEEP: on_timeout_sweep,
    TIMED_OUT: on_timed_out,
    EXPIRY_SWEEP: on_expiry_sweep,
}


class TransactionShard:
    def __init__(
        self,
        settings: TransactionSettings,
        send: Callable[[Markers], None],
        transaction_version: Callable[[], int],
    ) -> None:
        self.undo = UndoLog()
        self.settings = settings
        self.send = send  # only called with committed decisions
        self.transaction_version = transaction_version  # the cluster's, as this broker has seen it last
        self.tables = TransactionTables(self.undo)
        self.fencings = FencingLog()

    # --- called by the runtime

    def decide(self, request: TransactionRequest, now_ms: int, tx: Tx) -> None:
        if not request.transactional_id:
            raise KafkaError(ErrorCode.INVALID_REQUEST)
        try:
            REQUEST_HANDLERS[type(request)](self, request, now_ms, tx)
        except ProducerFenced:
            assert not isinstance(request, MarkersWritten)
            name = request.transactional_id
            cause = EpochCause(self.tables.epoch_causes.get(name) or EpochCause.UNKNOWN)
            self.fencings.refused(request, self.tables.all[name], cause, now_ms)
            raise

    def apply(self, record: TransactionRecord, offset: int) -> None:
        self.tables.apply(record, offset)

    def on_timer(self, timer: Hashable, now_ms: int, tx: Tx) -> None:
        """Handle a timer: a tuple of its kind and the ids that it concerns."""
        assert isinstance(timer, tuple)
        TIMER_HANDLERS[timer[0]](self, timer, now_ms, tx)

    def on_leading(self, now_ms: int, tx: Tx) -> None:
        begin_endings(self, tx)
        begin_sweeps(self, now_ms, tx)

    # --- called by the handlers

    def bumps_epochs(self, client_version: int) -> bool:
        return min(client_version, self.transaction_version()) >= EPOCH_BUMP_VERSION_MIN

    def change(self, name: str, old: Transaction | None, new: Transaction, tx: Tx) -> Transaction:
        """Emit a change of a transaction and return the result; all changes except tombstones go through here."""
        before = State.EMPTY if old is None else old.state
        assert before in BEFORE[new.state], f"{name}: no transition from {before.text} to {new.state.text}"
        if old is not None and new.producer_id == old.producer_id:
            assert new.producer_epoch >= old.producer_epoch, f"{name}: its epoch decreases to {new.producer_epoch}"
        new = new.replace(previous_producer_id=new.producer_id if old is None else old.producer_id)
        tx.emit(record_of(name, new, self.transaction_version()))
        return self.tables.all[name]

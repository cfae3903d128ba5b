"""A transaction shard with controlled time, on a journal that can commit late, refuse writes and lose the lead."""

from __future__ import annotations

from typing import Any

from tests.fakes import FakeJournal

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.coordinators.transaction.records import (
    decode_transaction_record,
    encode_transaction_record,
)
from headrace.coordinators.transaction.request import (
    AddPartitions,
    EndTransaction,
    InitProducer,
    Markers,
)
from headrace.coordinators.transaction.settings import TransactionSettings
from headrace.coordinators.transaction.shard import TransactionShard
from headrace.coordinators.transaction.state import Transaction, record_of
from headrace.coordinators.transaction.states import State
from headrace.statemachine.runtime import Runtime

NAME = "payments"
PRODUCER = 500
FRESH = 900
TIMEOUT_MS = 60_000
P0, P1, P2 = (TopicPartition("orders", index) for index in range(3))


class TransactionHarness:
    def __init__(self, version: int = 2, **settings: Any) -> None:
        self.version = version  # the cluster's transaction version
        self.settings = TransactionSettings(**settings)
        self.now_ms = 1_000_000
        self.sent: list[Markers] = []
        self.journal = FakeJournal(encode=encode_transaction_record)
        self.lead()

    def lead(self) -> None:
        """Start a new coordinator that loads what is written."""
        self.shard = TransactionShard(self.settings, self.sent.append, lambda: self.version)
        self.runtime = Runtime(self.shard, self.journal)
        list(self.runtime.load([(0, [decode_transaction_record(*record) for record in self.journal.written])]))
        self.runtime.lead(self.now_ms)
        self.settle()

    def move(self) -> None:
        """Lose leadership, then take it again with what is committed."""
        self.journal.lose()
        self.journal = FakeJournal(self.journal.written, encode=encode_transaction_record)
        self.lead()

    def settle(self) -> None:
        if not self.journal.late:
            self.journal.commit()

    def put(self, **fields: Any) -> None:
        """Write a transactional id to the log and load it."""
        found = Transaction(**{"producer_id": PRODUCER, "producer_epoch": 7, "timeout_ms": TIMEOUT_MS, **fields})
        self.journal.written.append(encode_transaction_record(record_of(NAME, found, self.version)))
        self.journal.committed = len(self.journal.written)
        self.lead()

    # --- requests

    def submit(self, request: Any) -> list[Any]:
        """Return a list that is empty until the response or exception arrives."""
        responses: list[Any] = []
        self.runtime.submit(request, self.now_ms, lambda response, error: responses.append(error or response))
        self.settle()
        return responses

    def execute(self, request: Any) -> Any:
        [response] = self.submit(request)
        if isinstance(response, Exception):
            raise response
        return response

    def code(self, request: Any) -> ErrorCode:
        try:
            self.execute(request)
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE

    def write_markers(self) -> bool:
        """Confirm all sent markers as written; return False if there were none."""
        sent = self.sent[:]
        del self.sent[:]
        for markers in sent:
            self.execute(markers.written())
        return bool(sent)

    def pass_time(self, ms: int) -> None:
        until = self.now_ms + ms
        while (at := self.runtime.next_timer()) is not None and at <= until:
            self.now_ms = max(self.now_ms, at)
            self.runtime.tick(self.now_ms)
            self.settle()
        self.now_ms = until

    # --- state

    @property
    def found(self) -> Transaction | None:
        return self.shard.tables.all.get(NAME)

    @property
    def state(self) -> State:
        return self.found.state

    @property
    def producer(self) -> tuple[int, int]:
        return self.found.producer_id, self.found.producer_epoch

    def states_written(self) -> list[State | None]:
        """Return the state of every record, in log order."""
        values = [decode_transaction_record(*record).value for record in self.journal.written]
        return [None if value is None else State(value.transaction_status) for value in values]


def init(producer: tuple[int, ...] = (-1, -1), fresh: int = FRESH, **more: Any) -> InitProducer:
    more.setdefault("timeout_ms", TIMEOUT_MS)
    return InitProducer(NAME, producer_id=producer[0], producer_epoch=producer[1], fresh_producer_id=fresh, **more)


def add(producer: tuple[int, int], *partitions: TopicPartition, **more: Any) -> AddPartitions:
    return AddPartitions(NAME, *producer, partitions or (P0,), **more)


def end(
    producer: tuple[int, int], commit: bool = True, client_version: int = 2, fresh: int = FRESH, **more: Any
) -> EndTransaction:
    return EndTransaction(NAME, *producer, commit, client_version, fresh, **more)

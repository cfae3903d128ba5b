"""A transaction shard with controlled time, on a journal that can commit late, refuse writes and lose the lead."""

from group_harness import Journal as GroupJournal

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.coordinators.transaction.records import decode_transaction_record, encode_transaction_record
from headrace.coordinators.transaction.request import AddPartitions, EndTransaction, InitProducer
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


class Journal(GroupJournal):
    def append(self, records):
        if self.refusal is not None:
            raise self.refusal
        self.written += [encode_transaction_record(record) for record in records]
        return len(self.written) - 1


class TransactionHarness:
    def __init__(self, version=2, **settings):
        self.version = version  # the cluster's transaction version
        self.settings = TransactionSettings(**settings)
        self.now_ms = 1_000_000
        self.sent = []
        self.journal = Journal()
        self.lead()

    def lead(self):
        """Start a new coordinator that loads what is written."""
        self.shard = TransactionShard(self.settings, self.sent.append, lambda: self.version)
        self.runtime = Runtime(self.shard, self.journal)
        list(self.runtime.load([(0, [decode_transaction_record(*record) for record in self.journal.written])]))
        self.runtime.lead(self.now_ms)
        self.settle()

    def move(self):
        """Lose leadership, then take it again with what is committed."""
        self.journal.lose()
        self.journal = Journal(self.journal.written)
        self.lead()

    def settle(self):
        if not self.journal.late:
            self.journal.commit()

    def put(self, **fields):
        """Write a transactional id to the log and load it."""
        found = Transaction(**{"producer_id": PRODUCER, "producer_epoch": 7, "timeout_ms": TIMEOUT_MS, **fields})
        self.journal.written.append(encode_transaction_record(record_of(NAME, found, self.version)))
        self.journal.committed = len(self.journal.written)
        self.lead()

    # --- requests

    def submit(self, request):
        """Return a list that is empty until the response or exception arrives."""
        responses = []
        self.runtime.submit(request, self.now_ms, lambda response, error: responses.append(error or response))
        self.settle()
        return responses

    def execute(self, request):
        [response] = self.submit(request)
        if isinstance(response, Exception):
            raise response
        return response

    def code(self, request):
        try:
            self.execute(request)
        except KafkaError as error:
            return error.code
        return ErrorCode.NONE

    def write_markers(self):
        """Confirm all sent markers as written; return False if there were none."""
        sent = self.sent[:]
        del self.sent[:]
        for markers in sent:
            self.execute(markers.written())
        return bool(sent)

    def pass_time(self, ms):
        until = self.now_ms + ms
        while (at := self.runtime.next_timer()) is not None and at <= until:
            self.now_ms = max(self.now_ms, at)
            self.runtime.tick(self.now_ms)
            self.settle()
        self.now_ms = until

    # --- state

    @property
    def found(self):
        return self.shard.tables.all.get(NAME)

    @property
    def state(self):
        return self.found.state

    @property
    def producer(self):
        return self.found.producer_id, self.found.producer_epoch

    def states_written(self):
        """Return the state of every record, in log order."""
        values = [decode_transaction_record(*record).value for record in self.journal.written]
        return [None if value is None else State(value.transaction_status) for value in values]


def init(producer=(-1, -1), fresh=FRESH, **more):
    more.setdefault("timeout_ms", TIMEOUT_MS)
    return InitProducer(NAME, producer_id=producer[0], producer_epoch=producer[1], fresh_producer_id=fresh, **more)


def add(producer, *partitions, **more):
    return AddPartitions(NAME, *producer, partitions or (P0,), **more)


def end(producer, commit=True, client_version=2, fresh=FRESH, **more):
    return EndTransaction(NAME, *producer, commit, client_version, fresh, **more)

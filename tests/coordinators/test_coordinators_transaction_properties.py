"""Producers that begin, end, repeat, come late and come twice, on a journal that is late, refuses and is lost.

The log has one consistent history of each transaction, and no response contradicts it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.coordinators.transaction_harness import NAME, PRODUCER, TIMEOUT_MS, TransactionHarness, add, end, init

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.coordinators.transaction.records import decode_transaction_record
from headrace.coordinators.transaction.request import (
    EndTransaction,
    Markers,
    TransactionEnded,
)
from headrace.coordinators.transaction.state import (
    EPOCH_LAST,
    EPOCH_MAX,
    Transaction,
    TransactionTables,
    transaction_of,
)
from headrace.coordinators.transaction.states import BEFORE, PREPARED, State
from headrace.statemachine.undo import UndoLog

CLIENTS = st.sampled_from((0, 0, 0, 1, 1, 2))
CLIENT_STEPS = st.one_of(  # steps of a producer; the commonest are repeated
    st.tuples(st.just("transaction"), CLIENTS, st.booleans()),
    st.tuples(st.just("transaction"), CLIENTS, st.booleans()),
    st.tuples(st.just("add"), CLIENTS, st.integers(0, 3)),
    st.tuples(st.just("end"), CLIENTS, st.booleans()),
    st.tuples(st.sampled_from(("init", "go on", "keep", "again", "again")), CLIENTS, st.none()),
)
EVENTS = st.one_of(
    st.tuples(st.sampled_from(("markers", "markers again")), st.none(), st.none()),
    st.tuples(st.sampled_from(("flush", "flush", "hold", "refuse", "move")), st.none(), st.none()),
    st.tuples(st.just("advance"), st.none(), st.sampled_from((1, 11_000, TIMEOUT_MS + 11_000))),
)
STEPS = st.one_of(CLIENT_STEPS, CLIENT_STEPS, EVENTS)
FENCING_CODES = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
COMPLETED = {State.PREPARE_COMMIT: State.COMPLETE_COMMIT, State.PREPARE_ABORT: State.COMPLETE_ABORT}


class Client:
    def __init__(self) -> None:
        self.producer: Any = None  # (producer id, epoch)
        self.last: Any = None  # last request, if it may be repeated


class Scenario:
    def __init__(self, version: int, epoch: int | None, two_phase: bool) -> None:
        self.version = version
        self.two_phase = two_phase
        self.harness = TransactionHarness(version, transaction_two_phase_commit_enable=True)
        if epoch is not None:
            self.harness.put(producer_epoch=epoch)
        self.clients = [Client() for _ in range(3)]
        self.fresh = 1000
        self.requests: list[tuple[Any, list[Any]]] = []  # (request, responses)
        self.markers: list[Markers] = []

    def submit_request(self, client: Client, request: Any, repeats: bool = True) -> None:
        responses: list[Any] = []
        self.requests.append((request, responses))

        def on_response(response: Any, error: Exception | None) -> None:
            responses.append(error or response)
            if error is None and getattr(response, "producer_id", -1) != -1:
                client.producer = response.producer_id, response.producer_epoch
            elif isinstance(error, KafkaError) and error.code in FENCING_CODES:
                client.producer = None
            self.check_markers()

        if repeats:
            client.last = request
        self.harness.runtime.submit(request, self.harness.now_ms, on_response)
        self.harness.settle()
        self.check_markers()

    def check_markers(self) -> None:
        """Check that markers are only sent after their decision is committed."""
        journal = self.harness.journal
        for markers in self.harness.sent[len(self.markers) :]:
            self.markers.append(markers)
            assert markers.prepared_offset < journal.committed
            found = transaction_of(decode_transaction_record(*journal.written[markers.prepared_offset]).value)
            assert found.state is (State.PREPARE_COMMIT if markers.commit else State.PREPARE_ABORT)
            assert (found.producer_id, found.producer_epoch) == (markers.producer_id, markers.producer_epoch)
            assert sorted(found.partitions) == list(markers.partitions)

    def take(self, step: str, number: int | None, detail: Any) -> None:
        client: Any = None if number is None else self.clients[number]
        self.fresh += 1
        fresh: dict[str, Any] = {"fresh": self.fresh}
        anew: dict[str, Any] = {"fresh": self.fresh, "enable_two_phase_commit": self.two_phase}
        if step == "keep":
            self.submit_request(client, init(keep_prepared=self.two_phase, **anew), repeats=False)
        elif step == "init" or (client is not None and client.producer is None):
            self.submit_request(client, init(**anew), repeats=False)
        elif step == "go on":
            self.submit_request(client, init(client.producer, **anew))
        elif step == "again":
            if client.last is not None:
                self.submit_request(client, client.last)
        elif step == "add":
            self.submit_request(client, add(client.producer, TopicPartition("t", detail), client_version=self.version))
        elif step == "end":
            self.submit_request(client, end(client.producer, detail, self.version, **fresh))
        elif step == "transaction":
            self.submit_request(client, add(client.producer, client_version=self.version))
            if client.producer is not None:
                self.submit_request(client, end(client.producer, detail, self.version, **fresh))
                self.write_markers()
        else:
            self.apply_event(step, detail)

    def apply_event(self, step: str, detail: int | None) -> None:
        harness = self.harness
        if step == "markers":
            self.write_markers()
        elif step == "markers again":
            for markers in self.markers[:3]:
                self.submit_request(None, markers.written(), repeats=False)
        elif step == "advance":
            harness.pass_time(detail)
        elif step == "hold":
            harness.journal.late = True
        elif step == "refuse":
            harness.journal.refusal = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
        elif step == "flush":
            harness.journal.late, harness.journal.refusal = False, None
            harness.journal.commit()
        elif step == "move":
            harness.move()
        self.check_markers()

    def write_markers(self) -> None:
        for markers in self.markers[-2:]:
            self.submit_request(None, markers.written(), repeats=False)

    def drain(self) -> None:
        self.apply_event("flush", None)
        self.write_markers()
        self.apply_event("move", None)
        self.write_markers()

    # --- invariants

    def check_state(self) -> None:
        """Check that replaying the log gives the live state."""
        tables, live = TransactionTables(UndoLog()), self.harness.shard.tables
        for offset, record in enumerate(self.harness.journal.written):
            tables.apply(decode_transaction_record(*record), offset)
        for name in ("all", "ongoing", "prepared"):
            assert sorted(getattr(tables, name).items()) == sorted(getattr(live, name).items())
        for name, found in live.all.items():
            assert (name in live.ongoing) == (found.state is State.ONGOING)
            assert (name in live.prepared) == (found.state in PREPARED)

    def history(self) -> list[Transaction]:
        values = [decode_transaction_record(*record).value for record in self.harness.journal.written]
        return [transaction_of(value) for value in values]

    def check_log(self) -> list[Transaction]:
        history = self.history()
        gone: set[int] = set()
        for old, new in pairwise(history):
            assert old.state in BEFORE[new.state]
            if old.state in PREPARED:
                assert new.state is COMPLETED[old.state]
                assert (new.producer_id, new.producer_epoch) == old.successor
            if new.state in PREPARED:
                assert new.partitions == old.partitions
            if old.state is new.state is State.ONGOING:
                assert new.partitions >= old.partitions
            if new.producer_id == old.producer_id:
                assert new.producer_epoch >= old.producer_epoch
            else:
                gone.add(old.producer_id)
            assert new.producer_id not in gone
            if new.state in (State.EMPTY, State.ONGOING):
                assert new.producer_epoch <= EPOCH_LAST
            assert new.client[1] <= EPOCH_MAX
        return history

    def check_responses(self, history: Sequence[Transaction]) -> None:
        for request, responses in self.requests:
            assert len(responses) == 1
            if isinstance(responses[0], Exception):
                continue
            if type(request) is type(add((0, 0))):
                assert any(
                    found.state is State.ONGOING
                    and (found.producer_id, found.producer_epoch) == (request.producer_id, request.producer_epoch)
                    and found.partitions >= set(request.partitions)
                    for found in history
                )
            elif type(request) is type(end((0, 0))):
                self.check_end(request, responses[0], history)

    def check_end(self, request: EndTransaction, response: TransactionEnded, history: Sequence[Transaction]) -> None:
        """Check that the end was decided and completed as its response said; with version 2, never otherwise."""
        kind = State.PREPARE_COMMIT if request.commit else State.PREPARE_ABORT
        if self.version < 2:
            mine = (request.producer_id, request.producer_epoch)
            ends = [found.state for found in history if (found.producer_id, found.producer_epoch) == mine]
            assert kind in ends and COMPLETED[kind] in ends
            return
        after = (response.producer_id, response.producer_epoch)
        ended = {
            found.state
            for old, found in pairwise(history)
            if found.successor == after and found.state in (*PREPARED, *COMPLETED.values())
        }
        assert ended == {kind, COMPLETED[kind]}


@settings(deadline=None, max_examples=200)
@given(
    st.sampled_from(((0, False), (1, False), (2, False), (2, True))),
    st.sampled_from((None, None, 3, EPOCH_LAST - 2, EPOCH_LAST)),
    st.lists(STEPS, min_size=10, max_size=40),
)
def test_the_log_has_one_consistent_history_that_agrees_with_all_responses(
    kind: tuple[int, bool], epoch: int | None, steps: list[tuple[str, Any, Any]]
) -> None:
    scenario = Scenario(kind[0], epoch, two_phase=kind[1])
    for step in steps:
        refused = scenario.harness.journal.refusal
        scenario.take(*step)
        if refused:
            scenario.harness.journal.refusal = None
        scenario.check_state()
    scenario.drain()
    scenario.check_state()
    assert scenario.harness.shard.tables.prepared.keys() == []
    scenario.check_responses(scenario.check_log())
    assert {PRODUCER, *range(1000, scenario.fresh + 1)} >= {found.producer_id for found in scenario.history()}
    assert all(markers.transactional_id == NAME for markers in scenario.markers)

"""Producers that begin, end, repeat, come late and come twice, on a journal that is late, refuses and is lost.

The log has one consistent history of each transaction, and no response contradicts it.
"""

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from transaction_stage import NAME, PRODUCER, TIMEOUT_MS, Stage, add, end, init

from headrace.base.errors import ErrorCode, KafkaError
from headrace.base.ids import TopicPartition
from headrace.coordinators.transaction.records import decode_transaction_record
from headrace.coordinators.transaction.state import EPOCH_LAST, EPOCH_MAX, TransactionTables, transaction_of
from headrace.coordinators.transaction.states import BEFORE, PREPARED, State
from headrace.statemachine.undo import UndoLog

CLIENTS = st.sampled_from((0, 0, 0, 1, 1, 2))
DONE = st.one_of(  # steps of a producer; the commonest are repeated
    st.tuples(st.just("transaction"), CLIENTS, st.booleans()),
    st.tuples(st.just("transaction"), CLIENTS, st.booleans()),
    st.tuples(st.just("add"), CLIENTS, st.integers(0, 3)),
    st.tuples(st.just("end"), CLIENTS, st.booleans()),
    st.tuples(st.sampled_from(("init", "go on", "keep", "again", "again")), CLIENTS, st.none()),
)
HAPPENS = st.one_of(
    st.tuples(st.sampled_from(("markers", "markers again")), st.none(), st.none()),
    st.tuples(st.sampled_from(("flush", "flush", "hold", "refuse", "move")), st.none(), st.none()),
    st.tuples(st.just("advance"), st.none(), st.sampled_from((1, 11_000, TIMEOUT_MS + 11_000))),
)
STEPS = st.one_of(DONE, DONE, HAPPENS)
GONE = (ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_ID_MAPPING)
COMPLETED = {State.PREPARE_COMMIT: State.COMPLETE_COMMIT, State.PREPARE_ABORT: State.COMPLETE_ABORT}


class Client:
    def __init__(self):
        self.producer = None
        self.last = None  # last request, if it may be repeated


class World:
    def __init__(self, version, epoch, two_phase):
        self.version = version
        self.two_phase = two_phase
        self.stage = Stage(version, transaction_two_phase_commit_enable=True)
        if epoch is not None:
            self.stage.put(producer_epoch=epoch)
        self.clients = [Client() for _ in range(3)]
        self.fresh = 1000
        self.asked = []  # (request, responses)
        self.markers = []

    def ask(self, client, request, repeats=True):
        told = []
        self.asked.append((request, told))

        def tell(answer, error):
            told.append(error or answer)
            if error is None and getattr(answer, "producer_id", -1) != -1:
                client.producer = answer.producer_id, answer.producer_epoch
            elif isinstance(error, KafkaError) and error.code in GONE:
                client.producer = None
            self.look_at_markers()

        if repeats:
            client.last = request
        self.stage.runtime.submit(request, self.stage.now_ms, tell)
        self.stage.settle()
        self.look_at_markers()

    def look_at_markers(self):
        """Check that markers are only sent after their decision is committed."""
        journal = self.stage.journal
        for markers in self.stage.sent[len(self.markers) :]:
            self.markers.append(markers)
            assert markers.prepared_offset < journal.committed
            found = transaction_of(decode_transaction_record(*journal.written[markers.prepared_offset]).value)
            assert found.state is (State.PREPARE_COMMIT if markers.commit else State.PREPARE_ABORT)
            assert (found.producer_id, found.producer_epoch) == (markers.producer_id, markers.producer_epoch)
            assert sorted(found.partitions) == list(markers.partitions)

    def take(self, step, number, detail):
        client = None if number is None else self.clients[number]
        self.fresh += 1
        fresh, anew = {"fresh": self.fresh}, {"fresh": self.fresh, "enable_two_phase_commit": self.two_phase}
        if step == "keep":
            self.ask(client, init(keep_prepared=self.two_phase, **anew), repeats=False)
        elif step == "init" or (client is not None and client.producer is None):
            self.ask(client, init(**anew), repeats=False)
        elif step == "go on":
            self.ask(client, init(client.producer, **anew))
        elif step == "again":
            if client.last is not None:
                self.ask(client, client.last)
        elif step == "add":
            self.ask(client, add(client.producer, TopicPartition("t", detail), client_version=self.version))
        elif step == "end":
            self.ask(client, end(client.producer, detail, self.version, **fresh))
        elif step == "transaction":
            self.ask(client, add(client.producer, client_version=self.version))
            if client.producer is not None:
                self.ask(client, end(client.producer, detail, self.version, **fresh))
                self.write_markers()
        else:
            self.happen(step, detail)

    def happen(self, step, detail):
        stage = self.stage
        if step == "markers":
            self.write_markers()
        elif step == "markers again":
            for markers in self.markers[:3]:
                self.ask(None, markers.written(), repeats=False)
        elif step == "advance":
            stage.pass_time(detail)
        elif step == "hold":
            stage.journal.late = True
        elif step == "refuse":
            stage.journal.refusal = KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
        elif step == "flush":
            stage.journal.late, stage.journal.refusal = False, None
            stage.journal.commit()
        elif step == "move":
            stage.move()
        self.look_at_markers()

    def write_markers(self):
        for markers in self.markers[-2:]:
            self.ask(None, markers.written(), repeats=False)

    def drain(self):
        self.happen("flush", None)
        self.write_markers()
        self.happen("move", None)
        self.write_markers()

    # --- invariants

    def check_state(self):
        """Check that replaying the log gives the live state."""
        tables, live = TransactionTables(UndoLog()), self.stage.shard.tables
        for offset, record in enumerate(self.stage.journal.written):
            tables.apply(decode_transaction_record(*record), offset)
        for name in ("all", "ongoing", "prepared"):
            assert sorted(getattr(tables, name).items()) == sorted(getattr(live, name).items())
        for name, found in live.all.items():
            assert (name in live.ongoing) == (found.state is State.ONGOING)
            assert (name in live.prepared) == (found.state in PREPARED)

    def history(self):
        values = [decode_transaction_record(*record).value for record in self.stage.journal.written]
        return [transaction_of(value) for value in values]

    def check_log(self):
        history, gone = self.history(), set()
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

    def check_told(self, history):
        for request, told in self.asked:
            assert len(told) == 1
            if isinstance(told[0], Exception):
                continue
            if type(request) is type(add((0, 0))):
                assert any(
                    found.state is State.ONGOING
                    and (found.producer_id, found.producer_epoch) == (request.producer_id, request.producer_epoch)
                    and found.partitions >= set(request.partitions)
                    for found in history
                )
            elif type(request) is type(end((0, 0))):
                self.check_end(request, told[0], history)

    def check_end(self, request, answer, history):
        """Check that the end was decided and completed as its response said; with version 2, never otherwise."""
        kind = State.PREPARE_COMMIT if request.commit else State.PREPARE_ABORT
        if self.version < 2:
            mine = (request.producer_id, request.producer_epoch)
            ends = [found.state for found in history if (found.producer_id, found.producer_epoch) == mine]
            assert kind in ends and COMPLETED[kind] in ends
            return
        after = (answer.producer_id, answer.producer_epoch)
        ends = {
            found.state
            for old, found in pairwise(history)
            if found.successor == after and found.state in (*PREPARED, *COMPLETED.values())
        }
        assert ends == {kind, COMPLETED[kind]}


@settings(deadline=None, max_examples=200)
@given(
    st.sampled_from(((0, False), (1, False), (2, False), (2, True))),
    st.sampled_from((None, None, 3, EPOCH_LAST - 2, EPOCH_LAST)),
    st.lists(STEPS, min_size=10, max_size=40),
)
def test_the_log_tells_one_story(kind, epoch, steps):
    world = World(kind[0], epoch, two_phase=kind[1])
    for step in steps:
        refused = world.stage.journal.refusal
        world.take(*step)
        if refused:
            world.stage.journal.refusal = None
        world.check_state()
    world.drain()
    world.check_state()
    assert world.stage.shard.tables.prepared.keys() == []
    world.check_told(world.check_log())
    assert {PRODUCER, *range(1000, world.fresh + 1)} >= {found.producer_id for found in world.history()}
    assert all(markers.transactional_id == NAME for markers in world.markers)

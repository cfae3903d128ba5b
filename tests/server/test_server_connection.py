"""One connection on a recording transport: order of responses, fragmented frames, back-pressure, limits."""

import asyncio
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.metrics import Counter
from headrace.server.authority import ALLOW_ALL
from headrace.server.connection import (
    ANSWERS_WAITING_MAX,
    GATHER_CONNECTIONS_MIN,
    RECEIVE_BUFFER_UNPROVEN_MAX,
    SLOWEST_BYTES_PER_SWEEP,
    Connection,
)
from headrace.server.connection_pool import HELD_MAX, HELD_S, LET_GO_MAX, REFUSALS_TOLD_MAX, SCRATCH_BYTES, Company
from headrace.server.frames import CloseConnection, Deferred


class Recorder(asyncio.Transport):
    def __init__(self):
        super().__init__()
        self.written = bytearray()
        self.reading = True
        self.closed = False

    def write(self, data):
        self.written += data

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True

    def close(self):
        self.closed = True

    def set_write_buffer_limits(self, high=None, low=None):
        pass


class Turns:
    """An event loop whose iterations and clock the test advances; it has only call_soon, call_later and time."""

    def __init__(self):
        self.soon = []
        self.timers = []
        self.now = 0.0

    def call_later(self, delay, callback, *arguments):
        self.timers.append((self.now + delay, callback, arguments))

    def wait(self, seconds):
        self.now += seconds
        due = [timer for timer in self.timers if timer[0] <= self.now]
        self.timers = [timer for timer in self.timers if timer[0] > self.now]
        for _, callback, arguments in due:
            callback(*arguments)

    def time(self):
        return self.now

    def call_soon(self, callback):
        self.soon.append(callback)

    def turn(self):
        due, self.soon = self.soon, []
        for callback in due:
            callback()


class Stage:
    """A handler that echoes frames: later if they start with L or H (H holds the frame), never if with N."""

    def __init__(self, frame_max=10_000):
        self.turns = Turns()
        self.company = Company(Counter(), Counter(), Counter(), self.turns, ALLOW_ALL)
        self.deferred = []
        self.seen = []
        self.connection, self.transport = self.connect(frame_max)

    def connect(self, frame_max=10_000):
        connection, transport = Connection(self, "TEST", self.company, frame_max), Recorder()
        connection.connection_made(transport)
        return connection, transport

    def handle(self, peer, frame):
        body = bytes(frame)
        self.seen.append(body)
        if body[:1] == b"X":
            raise CloseConnection("asked for")
        if body[:1] == b"N":
            return None
        if body[:1] in b"LH":
            self.deferred.append((Deferred(lambda: self.seen.append(b"abandoned"), body[:1] == b"H"), body))
            return self.deferred[-1][0]
        return [pack(">i", len(body)) + body]

    def receive(self, data, connection=None):
        connection = connection or self.connection
        while data:
            view = connection.get_buffer(-1)
            piece = data[: len(view)]
            view[: len(piece)] = piece
            data = data[len(piece) :]
            connection.buffer_updated(len(piece))

    def resolve(self, number):
        deferred, body = self.deferred[number]
        deferred.resolve([pack(">i", len(body)), body])

    def answers(self, transport=None):
        written, out = bytes((transport or self.transport).written), []
        while written:
            size = int.from_bytes(written[:4], "big")
            out.append(written[4 : 4 + size])
            written = written[4 + size :]
        return out


def framed(*bodies):
    return b"".join(pack(">i", len(body)) + body for body in bodies)


BODIES = st.lists(st.binary(min_size=8, max_size=3000).map(lambda body: b"." + body), max_size=20)


@settings(deadline=None, max_examples=100)
@given(BODIES, st.lists(st.integers(1, 4000), max_size=30))
def test_frames_come_whole_and_in_order_however_the_stream_is_cut(bodies, cuts):
    stage, data = Stage(), framed(*bodies)
    for cut in cuts:
        stage.receive(data[:cut])
        data = data[cut:]
    stage.receive(data)
    assert stage.seen == bodies and stage.answers() == bodies


def test_an_answer_to_come_holds_back_those_behind_it():
    stage = Stage()
    stage.receive(framed(b"1.......", b"L2......", b"3.......", b"L4......", b"5......."))
    assert stage.answers() == [b"1......."]
    stage.resolve(1)
    assert stage.answers() == [b"1......."]
    stage.resolve(0)
    assert stage.answers() == [b"1.......", b"L2......", b"3.......", b"L4......", b"5......."]


def test_a_held_frame_stops_the_connection_until_it_is_let_go():
    stage = Stage()
    stage.receive(framed(b"H1......", b"2......."))
    assert stage.seen == [b"H1......"] and not stage.transport.reading
    stage.resolve(0)
    assert stage.answers() == [b"H1......", b"2......."] and stage.transport.reading


def test_no_answer_is_no_answer():
    stage = Stage()
    stage.receive(framed(b"N.......", b"1......."))
    assert stage.answers() == [b"1......."]


def test_too_many_waiting_answers_stop_the_reading():
    stage = Stage()
    stage.receive(framed(*[b"L......."] * (ANSWERS_WAITING_MAX + 5)))
    assert len(stage.seen) == ANSWERS_WAITING_MAX and not stage.transport.reading
    for number in range(5):
        stage.resolve(number)
    assert len(stage.seen) == ANSWERS_WAITING_MAX + 5
    for number in range(5, ANSWERS_WAITING_MAX + 5):
        stage.resolve(number)
    assert len(stage.answers()) == ANSWERS_WAITING_MAX + 5 and stage.transport.reading


def test_a_client_that_does_not_read_is_not_read_from():
    stage = Stage()
    stage.connection.pause_writing()
    stage.receive(framed(b"1......."))
    assert stage.seen == [] and not stage.transport.reading
    stage.connection.resume_writing()
    assert stage.answers() == [b"1......."] and stage.transport.reading


@pytest.mark.parametrize("size", [-1, 0, 7, 10_001, 2**31 - 1])
def test_a_size_out_of_bounds_ends_the_connection_after_the_answers_before_it(size):
    stage = Stage()
    stage.receive(framed(b"1.......") + pack(">i", size))
    assert stage.answers() == [b"1......."] and stage.transport.closed and stage.company.refused.value == 1


def test_a_request_that_cannot_be_answered_ends_the_connection():
    stage = Stage()
    stage.receive(framed(b"1.......", b"X.......", b"2......."))
    assert stage.answers() == [b"1......."] and stage.transport.closed
    stage = Stage()
    stage.receive(framed(b"L......."))
    stage.deferred[0][0].resolve(None)
    assert stage.transport.closed


def test_whoever_waits_is_told_when_the_client_has_gone():
    stage = Stage()
    stage.receive(framed(b"L......."))
    stage.connection.connection_lost(None)
    assert stage.seen[-1] == b"abandoned" and not stage.company.connections
    stage.resolve(0)
    assert stage.answers() == []


def test_in_company_the_answers_of_a_turn_leave_together():
    stage = Stage()
    others = [stage.connect() for _ in range(GATHER_CONNECTIONS_MIN)]
    for connection, _ in others:
        stage.receive(framed(b"1......."), connection)
    assert all(stage.answers(transport) == [] for _, transport in others)
    stage.turns.turn()
    assert all(stage.answers(transport) == [b"1......."] for _, transport in others)


def test_a_large_answer_leaves_in_pieces_and_waits_for_the_client():
    stage = Stage(frame_max=10_000_000)
    body = b"." * 1_000_000

    def write(data):
        stage.transport.written += data
        stage.connection.pause_writing()

    stage.transport.write = write
    stage.receive(framed(body))
    sent = len(stage.transport.written)
    assert 0 < sent < len(body)
    for _ in range(10):
        stage.connection.resume_writing()
    assert stage.answers() == [body]


def test_an_announced_size_alone_gets_no_memory():
    stage = Stage(frame_max=100_000_000)
    stage.receive(pack(">i", 99_000_000) + b"." * 100)
    assert len(stage.connection.get_buffer(-1)) <= RECEIVE_BUFFER_UNPROVEN_MAX
    body = b"." * 5_000_000
    stage = Stage(frame_max=100_000_000)
    stage.receive(framed(body, body, b"1......."))
    assert stage.seen == [body, body, b"1......."]


def test_who_sends_large_frames_is_read_in_large_pieces():
    stage = Stage(frame_max=100_000_000)
    body = b"." * 1_000_000
    for _ in range(4):
        stage.receive(framed(body))
    stage.receive(framed(body, body, body, body, body))
    assert len(stage.seen) == 9 and len(stage.connection.get_buffer(-1)) >= 5 * len(body)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4000)), max_size=40), st.data())
def test_connections_that_share_a_buffer_do_not_mix_their_requests(pieces, data):
    stage = Stage()
    connections = [stage.connection, *(stage.connect()[0] for _ in range(2))]
    bodies = [[b"%d" % number + body for body in data.draw(BODIES)] for number in range(3)]
    streams = [framed(*one) for one in bodies]
    for number, size in [*pieces, *((number, len(streams[number])) for number in range(3))]:
        stage.receive(streams[number][:size], connections[number])
        streams[number] = streams[number][size:]
    assert [[body for body in stage.seen if body[:1] == b"%d" % number] for number in range(3)] == bodies


def test_a_held_frame_is_not_overwritten_by_what_others_receive():
    stage, held = Stage(), []
    other, _ = stage.connect()
    handle = stage.handle

    def keep(peer, frame):
        held.append(frame)
        return handle(peer, frame)

    stage.handle = keep
    stage.receive(framed(b"H1......", b"2......."))
    stage.receive(framed(b"." * 3000), other)
    assert bytes(held[0]) == b"H1......"
    stage.resolve(0)
    assert stage.answers() == [b"H1......", b"2......."]


def test_who_sends_a_byte_now_and_then_is_as_idle_as_who_sends_none():
    stage = Stage(frame_max=100_000_000)
    stage.receive(pack(">i", 1_000_000))
    for round in range(1, 5):
        stage.receive(b".")
        assert stage.connection.sweep() == round
    stage.receive(b"." * SLOWEST_BYTES_PER_SWEEP)
    assert stage.connection.sweep() == 1, "a slow line is no idleness"


def test_a_silent_connection_gives_its_buffer_back():
    stage = Stage(frame_max=100_000_000)
    body = b"." * 1_000_000
    stage.receive(framed(body, body))
    assert stage.connection.sweep() == 1 and len(stage.connection.get_buffer(-1)) > SCRATCH_BYTES
    assert stage.connection.sweep() == 2 and len(stage.connection.get_buffer(-1)) == SCRATCH_BYTES
    stage.receive(framed(body))
    assert stage.seen == [body] * 3 and stage.connection.sweep() == 1


def test_of_many_refused_clients_the_log_tells_of_a_few_a_second(caplog):
    stage = Stage()
    for _ in range(REFUSALS_TOLD_MAX + 5):
        stage.receive(framed(b"X......."), stage.connect()[0])
    stage.turns.now = 1.0
    stage.receive(framed(b"X......."), stage.connect()[0])
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == REFUSALS_TOLD_MAX + 1 and "5 others" in told[-1]
    assert stage.company.refused.value == REFUSALS_TOLD_MAX + 6


def test_refused_clients_of_which_there_are_many_wait_before_they_may_come_again():
    stage = Stage()
    clients = [stage.connect() for _ in range(REFUSALS_TOLD_MAX + 5)]
    for connection, _ in clients:
        stage.receive(framed(b".......1", b"X......."), connection)
    stage.turns.turn()
    assert all(stage.answers(transport) == [b".......1"] for _, transport in clients)
    assert [transport.closed for _, transport in clients] == [True] * REFUSALS_TOLD_MAX + [False] * 5
    assert not any(transport.reading for _, transport in clients[REFUSALS_TOLD_MAX:])
    stage.turns.wait(HELD_S)
    assert all(transport.closed for _, transport in clients)


def test_only_so_many_refused_clients_wait():
    stage = Stage()
    clients = [stage.connect() for _ in range(REFUSALS_TOLD_MAX + HELD_MAX + 1)]
    for connection, _ in clients:
        stage.receive(framed(b"X......."), connection)
    assert clients[-1][1].closed and not clients[-2][1].closed
    for _ in range(-(-HELD_MAX // LET_GO_MAX)):
        assert not clients[-2][1].closed
        stage.turns.wait(HELD_S)
    assert clients[-2][1].closed and not stage.turns.timers


def test_refused_clients_that_wait_go_with_the_listener():
    stage = Stage()
    clients = [stage.connect() for _ in range(REFUSALS_TOLD_MAX + 5)]
    for connection, _ in clients:
        stage.receive(framed(b"X......."), connection)
    stage.company.end()
    assert all(transport.closed for _, transport in clients)
    stage.turns.wait(HELD_S)
    assert not stage.turns.timers

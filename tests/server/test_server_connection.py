"""One connection on a recording transport: order of responses, fragmented frames, back-pressure, limits."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from struct import pack
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.metrics import Counter
from headrace.server.authority import ALLOW_ALL
from headrace.server.connection import (
    GATHER_CONNECTIONS_MIN,
    RECEIVE_BUFFER_UNPROVEN_MAX,
    RESPONSES_WAITING_MAX,
    SLOWEST_BYTES_PER_SWEEP,
    Connection,
)
from headrace.server.connection_pool import (
    HELD_CLOSED_MAX,
    HELD_MAX,
    HELD_S,
    REFUSAL_LOG_LINES_PER_SECOND,
    SCRATCH_BYTES,
    ConnectionPool,
)
from headrace.server.context import Peer
from headrace.server.frames import CloseConnection, Deferred


class RecordingTransport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.reading = True
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = True

    def set_write_buffer_limits(self, high: int | None = None, low: Any = None) -> None:
        pass


class ManualLoop:
    """An event loop whose iterations and clock the test advances; it has only call_soon, call_later and time."""

    def __init__(self) -> None:
        self.soon: list[Callable[..., Any]] = []
        self.timers: list[tuple[float, Callable[..., Any], tuple[Any, ...]]] = []
        self.now = 0.0

    def call_later(self, delay: float, callback: Callable[..., Any], *arguments: Any) -> None:
        self.timers.append((self.now + delay, callback, arguments))

    def wait(self, seconds: float) -> None:
        self.now += seconds
        due = [timer for timer in self.timers if timer[0] <= self.now]
        self.timers = [timer for timer in self.timers if timer[0] > self.now]
        for _, callback, arguments in due:
            callback(*arguments)

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Callable[..., Any]) -> None:
        self.soon.append(callback)

    def run_once(self) -> None:
        due, self.soon = self.soon, []
        for callback in due:
            callback()


class ConnectionHarness:
    """A handler that echoes frames: later if they start with L or H (H holds the frame), never if with N."""

    def __init__(self, frame_max: int = 10_000) -> None:
        self.manual_loop = ManualLoop()
        self.pool = ConnectionPool(Counter(), Counter(), Counter(), self.manual_loop, ALLOW_ALL)  # type: ignore[arg-type]
        self.deferred: list[tuple[Deferred, bytes]] = []
        self.seen: list[bytes] = []
        self.connection, self.transport = self.connect(frame_max)

    def connect(self, frame_max: int = 10_000) -> tuple[Connection, RecordingTransport]:
        connection, transport = Connection(self, "TEST", self.pool, frame_max), RecordingTransport()  # type: ignore[arg-type]
        connection.connection_made(transport)
        return connection, transport

    def handle(self, peer: Peer, frame: memoryview) -> list[bytes] | Deferred | None:
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

    def receive(self, data: bytes, connection: Connection | None = None) -> None:
        connection = connection or self.connection
        while data:
            view = connection.get_buffer(-1)
            piece = data[: len(view)]
            view[: len(piece)] = piece
            data = data[len(piece) :]
            connection.buffer_updated(len(piece))

    def resolve(self, number: int) -> None:
        deferred, body = self.deferred[number]
        deferred.resolve([pack(">i", len(body)), body])

    def responses(self, transport: RecordingTransport | None = None) -> list[bytes]:
        written = bytes((transport or self.transport).written)
        out: list[bytes] = []
        while written:
            size = int.from_bytes(written[:4], "big")
            out.append(written[4 : 4 + size])
            written = written[4 + size :]
        return out


def framed(*bodies: bytes) -> bytes:
    return b"".join(pack(">i", len(body)) + body for body in bodies)


BODIES = st.lists(st.binary(min_size=8, max_size=3000).map(lambda body: b"." + body), max_size=20)


@settings(deadline=None, max_examples=100)
@given(BODIES, st.lists(st.integers(1, 4000), max_size=30))
def test_frames_are_complete_and_in_order_however_the_stream_is_fragmented(
    bodies: list[bytes], cuts: list[int]
) -> None:
    harness, data = ConnectionHarness(), framed(*bodies)
    for cut in cuts:
        harness.receive(data[:cut])
        data = data[cut:]
    harness.receive(data)
    assert harness.seen == bodies and harness.responses() == bodies


def test_a_deferred_response_delays_the_responses_after_it() -> None:
    harness = ConnectionHarness()
    harness.receive(framed(b"1.......", b"L2......", b"3.......", b"L4......", b"5......."))
    assert harness.responses() == [b"1......."]
    harness.resolve(1)
    assert harness.responses() == [b"1......."]
    harness.resolve(0)
    assert harness.responses() == [b"1.......", b"L2......", b"3.......", b"L4......", b"5......."]


def test_a_held_frame_pauses_reading_until_its_response_is_resolved() -> None:
    harness = ConnectionHarness()
    harness.receive(framed(b"H1......", b"2......."))
    assert harness.seen == [b"H1......"] and not harness.transport.reading
    harness.resolve(0)
    assert harness.responses() == [b"H1......", b"2......."] and harness.transport.reading


def test_a_request_without_a_response_sends_nothing() -> None:
    harness = ConnectionHarness()
    harness.receive(framed(b"N.......", b"1......."))
    assert harness.responses() == [b"1......."]


def test_too_many_deferred_responses_pause_reading() -> None:
    harness = ConnectionHarness()
    harness.receive(framed(*[b"L......."] * (RESPONSES_WAITING_MAX + 5)))
    assert len(harness.seen) == RESPONSES_WAITING_MAX and not harness.transport.reading
    for number in range(5):
        harness.resolve(number)
    assert len(harness.seen) == RESPONSES_WAITING_MAX  # no request is handled in the call that resolves another one
    harness.manual_loop.run_once()
    assert len(harness.seen) == RESPONSES_WAITING_MAX + 5
    for number in range(5, RESPONSES_WAITING_MAX + 5):
        harness.resolve(number)
    assert len(harness.responses()) == RESPONSES_WAITING_MAX + 5 and harness.transport.reading


def test_reading_is_paused_while_writing_is_paused() -> None:
    harness = ConnectionHarness()
    harness.connection.pause_writing()
    harness.receive(framed(b"1......."))
    assert harness.seen == [] and not harness.transport.reading
    harness.connection.resume_writing()
    assert harness.responses() == [b"1......."] and harness.transport.reading


@pytest.mark.parametrize("size", [-1, 0, 7, 10_001, 2**31 - 1])
def test_an_invalid_frame_size_closes_the_connection_after_earlier_responses(size: int) -> None:
    harness = ConnectionHarness()
    harness.receive(framed(b"1.......") + pack(">i", size))
    assert harness.responses() == [b"1......."] and harness.transport.closed and harness.pool.refused.value == 1


def test_a_handler_closes_the_connection_by_raising_or_by_resolving_to_none() -> None:
    harness = ConnectionHarness()
    harness.receive(framed(b"1.......", b"X.......", b"2......."))
    assert harness.responses() == [b"1......."] and harness.transport.closed
    harness = ConnectionHarness()
    harness.receive(framed(b"L......."))
    harness.deferred[0][0].resolve(None)
    assert harness.transport.closed


def test_a_lost_connection_abandons_its_deferred_responses() -> None:
    harness = ConnectionHarness()
    harness.receive(framed(b"L......."))
    harness.connection.connection_lost(None)
    assert harness.seen[-1] == b"abandoned" and not harness.pool.connections
    harness.resolve(0)
    assert harness.responses() == []


def test_with_many_connections_responses_are_flushed_once_per_loop_iteration() -> None:
    harness = ConnectionHarness()
    others = [harness.connect() for _ in range(GATHER_CONNECTIONS_MIN)]
    for connection, _ in others:
        harness.receive(framed(b"1......."), connection)
    assert all(harness.responses(transport) == [] for _, transport in others)
    harness.manual_loop.run_once()
    assert all(harness.responses(transport) == [b"1......."] for _, transport in others)


def test_a_large_response_is_sent_in_pieces_as_the_client_reads() -> None:
    harness = ConnectionHarness(frame_max=10_000_000)
    body = b"." * 1_000_000

    def write(data: memoryview) -> None:
        harness.transport.written += data
        harness.connection.pause_writing()

    harness.transport.write = write  # type: ignore[assignment]
    harness.receive(framed(body))
    sent = len(harness.transport.written)
    assert 0 < sent < len(body)
    for _ in range(10):
        harness.connection.resume_writing()
    assert harness.responses() == [body]


def test_an_announced_frame_size_alone_allocates_no_large_buffer() -> None:
    harness = ConnectionHarness(frame_max=100_000_000)
    harness.receive(pack(">i", 99_000_000) + b"." * 100)
    assert len(harness.connection.get_buffer(-1)) <= RECEIVE_BUFFER_UNPROVEN_MAX
    body = b"." * 5_000_000
    harness = ConnectionHarness(frame_max=100_000_000)
    harness.receive(framed(body, body, b"1......."))
    assert harness.seen == [body, body, b"1......."]


def test_the_receive_buffer_grows_for_a_client_that_sends_large_frames() -> None:
    harness = ConnectionHarness(frame_max=100_000_000)
    body = b"." * 1_000_000
    for _ in range(4):
        harness.receive(framed(body))
    harness.receive(framed(body, body, body, body, body))
    assert len(harness.seen) == 9 and len(harness.connection.get_buffer(-1)) >= 5 * len(body)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4000)), max_size=40), st.data())
def test_connections_that_share_a_buffer_do_not_mix_their_requests(
    pieces: list[tuple[int, int]], data: st.DataObject
) -> None:
    harness = ConnectionHarness()
    connections = [harness.connection, *(harness.connect()[0] for _ in range(2))]
    bodies = [[b"%d" % number + body for body in data.draw(BODIES)] for number in range(3)]
    streams = [framed(*one) for one in bodies]
    for number, size in [*pieces, *((number, len(streams[number])) for number in range(3))]:
        harness.receive(streams[number][:size], connections[number])
        streams[number] = streams[number][size:]
    assert [[body for body in harness.seen if body[:1] == b"%d" % number] for number in range(3)] == bodies


def test_a_held_frame_is_not_overwritten_by_data_of_other_connections() -> None:
    harness = ConnectionHarness()
    held: list[memoryview] = []
    other, _ = harness.connect()
    handle = harness.handle

    def keep(peer: Peer, frame: memoryview) -> list[bytes] | Deferred:
        held.append(frame)
        return handle(peer, frame)

    harness.handle = keep
    harness.receive(framed(b"H1......", b"2......."))
    harness.receive(framed(b"." * 3000), other)
    assert bytes(held[0]) == b"H1......"
    harness.resolve(0)
    assert harness.responses() == [b"H1......", b"2......."]


def test_a_connection_that_sends_single_bytes_counts_as_idle() -> None:
    harness = ConnectionHarness(frame_max=100_000_000)
    harness.receive(pack(">i", 1_000_000))
    for round in range(1, 5):
        harness.receive(b".")
        assert harness.connection.sweep() == round
    harness.receive(b"." * SLOWEST_BYTES_PER_SWEEP)
    assert harness.connection.sweep() == 1, "a slow line is no idleness"


def test_an_idle_connection_releases_its_receive_buffer() -> None:
    harness = ConnectionHarness(frame_max=100_000_000)
    body = b"." * 1_000_000
    harness.receive(framed(body, body))
    assert harness.connection.sweep() == 1 and len(harness.connection.get_buffer(-1)) > SCRATCH_BYTES
    assert harness.connection.sweep() == 2 and len(harness.connection.get_buffer(-1)) == SCRATCH_BYTES
    harness.receive(framed(body))
    assert harness.seen == [body] * 3 and harness.connection.sweep() == 1


def test_refused_clients_are_logged_at_a_limited_rate(caplog: pytest.LogCaptureFixture) -> None:
    harness = ConnectionHarness()
    for _ in range(REFUSAL_LOG_LINES_PER_SECOND + 5):
        harness.receive(framed(b"X......."), harness.connect()[0])
    harness.manual_loop.now = 1.0
    harness.receive(framed(b"X......."), harness.connect()[0])
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == REFUSAL_LOG_LINES_PER_SECOND + 1 and "5 earlier ones" in messages[-1]
    assert harness.pool.refused.value == REFUSAL_LOG_LINES_PER_SECOND + 6


def test_refused_connections_beyond_the_rate_limit_are_closed_after_a_delay() -> None:
    harness = ConnectionHarness()
    clients = [harness.connect() for _ in range(REFUSAL_LOG_LINES_PER_SECOND + 5)]
    for connection, _ in clients:
        harness.receive(framed(b".......1", b"X......."), connection)
    harness.manual_loop.run_once()
    assert all(harness.responses(transport) == [b".......1"] for _, transport in clients)
    assert [transport.closed for _, transport in clients] == [True] * REFUSAL_LOG_LINES_PER_SECOND + [False] * 5
    assert not any(transport.reading for _, transport in clients[REFUSAL_LOG_LINES_PER_SECOND:])
    harness.manual_loop.wait(HELD_S)
    assert all(transport.closed for _, transport in clients)


def test_the_number_of_delayed_refused_connections_is_limited() -> None:
    harness = ConnectionHarness()
    clients = [harness.connect() for _ in range(REFUSAL_LOG_LINES_PER_SECOND + HELD_MAX + 1)]
    for connection, _ in clients:
        harness.receive(framed(b"X......."), connection)
    assert clients[-1][1].closed and not clients[-2][1].closed
    for _ in range(-(-HELD_MAX // HELD_CLOSED_MAX)):
        assert not clients[-2][1].closed
        harness.manual_loop.wait(HELD_S)
    assert clients[-2][1].closed and not harness.manual_loop.timers


def test_delayed_refused_connections_are_closed_with_the_listener() -> None:
    harness = ConnectionHarness()
    clients = [harness.connect() for _ in range(REFUSAL_LOG_LINES_PER_SECOND + 5)]
    for connection, _ in clients:
        harness.receive(framed(b"X......."), connection)
    harness.pool.end()
    assert all(transport.closed for _, transport in clients)
    harness.manual_loop.wait(HELD_S)
    assert not harness.manual_loop.timers

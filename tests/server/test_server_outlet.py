"""Outgoing responses: what the socket does not take waits in order, files are not copied, a truncated file is an error."""

import asyncio
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.server import response_writer as outlet_module
from headrace.server.response_writer import JOIN_MAX, Outlet, joined


class Range:
    """Stored bytes of which a socket takes at most `step` at a time."""

    def __init__(self, data, taken, step=1 << 30):
        self.data, self.taken, self.step = data, taken, step

    def __len__(self):
        return len(self.data)

    def send_to(self, descriptor):
        part = self.data[: self.step]
        self.taken += part
        return len(part)

    def front(self, size):
        return self.data[:size]

    def after(self, size):
        return Range(self.data[size:], self.taken, self.step)


class Wire(asyncio.Transport):
    """A transport without a plain socket: it buffers all data and pauses the outlet."""

    def __init__(self):
        super().__init__()
        self.written = bytearray()
        self.outlet = None
        self.high = 0

    def write(self, data):
        self.written += data
        self.outlet.paused = True

    def set_write_buffer_limits(self, high=None, low=None):
        self.high = high


class Plain(Wire):
    """A transport on top of a real socket."""

    def __init__(self, sock):
        super().__init__()
        self.sock = sock

    def get_extra_info(self, name, default=None):
        return {"socket": self.sock, "sockname": ("::1", 1), "peername": ("::1", 2)}.get(name, default)


PARTS = st.lists(st.tuples(st.booleans(), st.binary(min_size=1, max_size=300)), min_size=1, max_size=12)


def make_parts(parts, taken=None):
    return [Range(data, taken) if stored else data for stored, data in parts]


@settings(deadline=None, max_examples=60)
@given(st.lists(PARTS, min_size=1, max_size=6), st.integers(1, 64))
def test_a_pausing_transport_receives_all_data_in_order(responses, piece):
    wire = Wire()
    wire.outlet = out = Outlet(wire)
    was_joined, was_piece = outlet_module.JOIN_MAX, outlet_module.WRITE_PIECE
    outlet_module.JOIN_MAX, outlet_module.WRITE_PIECE = 40, piece
    try:
        for parts in responses:
            out.send(make_parts(parts), sum(len(data) for _, data in parts))
        while out.paused:
            out.paused = False
            out.send_more()
    finally:
        outlet_module.JOIN_MAX, outlet_module.WRITE_PIECE = was_joined, was_piece
    assert bytes(wire.written) == b"".join(data for parts in responses for _, data in parts)


@pytest.fixture
def pair():
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    yield ours, theirs
    ours.close()
    theirs.close()


def plain(sock, monkeypatch):
    monkeypatch.setattr(outlet_module, "_CORK", None)  # a socket pair has no TCP
    wire = Plain(sock)
    wire.outlet = Outlet(wire)
    return wire


def test_a_plain_socket_has_a_write_buffer_limit_of_zero(pair, monkeypatch):
    assert plain(pair[0], monkeypatch).high == 0


def test_data_beyond_a_full_socket_buffer_is_sent_when_writing_resumes(pair, monkeypatch):
    wire = plain(pair[0], monkeypatch)
    data = bytes(range(256)) * 20_000
    wire.outlet.send([data[:100], data[100:]], len(data))
    received = bytearray()
    for _ in range(1000):
        pair[1].setblocking(False)
        try:
            while chunk := pair[1].recv(1 << 20):
                received += chunk
        except BlockingIOError:
            pass
        if wire.outlet.paused:  # the transport sends what it holds, then resumes the outlet
            held, wire.written = bytes(wire.written), bytearray()
            pair[0].setblocking(True)
            pair[0].sendall(held)
            pair[0].setblocking(False)
            wire.outlet.paused = False
            wire.outlet.send_more()
        elif len(received) == len(data):
            break
    assert bytes(received) == data


def test_file_ranges_and_bytes_bypass_the_transports_buffer(pair, monkeypatch):
    wire = plain(pair[0], monkeypatch)
    sent = bytearray()
    parts = [b"head" * 10_000, Range(b"file" * 10_000, sent), b"tail"]
    wire.outlet.send(parts, sum(map(len, parts)))
    assert bytes(sent) == b"file" * 10_000 and not wire.written
    assert pair[1].recv(1 << 20, socket.MSG_WAITALL | socket.MSG_DONTWAIT) == b"head" * 10_000 + b"tail"


def test_a_truncated_file_raises_instead_of_looping(pair, monkeypatch):
    wire = plain(pair[0], monkeypatch)
    with pytest.raises(OSError, match="shorter"):
        wire.outlet.send([b"head", Range(b"x" * (JOIN_MAX + 1), bytearray(), step=0)], JOIN_MAX + 5)


def test_joined_concatenates_bytes_and_file_ranges():
    assert joined([b"a", memoryview(b"b"), Range(b"c", None)]) == b"abc"

"""Outgoing responses: what the socket does not take waits in order, files are not copied, a truncated file is an error."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.server import response_writer as outlet_module
from headrace.server.response_writer import JOIN_MAX, ResponseWriter, joined


class Range:
    """Stored bytes of which a socket takes at most `step` at a time."""

    def __init__(self, data: bytes, taken: bytearray | None, step: int = 1 << 30) -> None:
        self.data, self.taken, self.step = data, taken, step

    def __len__(self) -> int:
        return len(self.data)

    def send_to(self, descriptor: int) -> int:
        part = self.data[: self.step]
        self.taken += part
        return len(part)

    def front(self, size: int) -> bytes:
        return self.data[:size]

    def after(self, size: int) -> Range:
        return Range(self.data[size:], self.taken, self.step)


class Wire(asyncio.Transport):
    """A transport without a plain socket: it buffers all data and pauses the outlet."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.writer: ResponseWriter | None = None
        self.high = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data
        self.writer.paused = True

    def set_write_buffer_limits(self, high: int | None = None, low: Any = None) -> None:
        self.high = high


class Plain(Wire):
    """A transport on top of a real socket."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self.sock = sock

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"socket": self.sock, "sockname": ("::1", 1), "peername": ("::1", 2)}.get(name, default)


PARTS = st.lists(st.tuples(st.booleans(), st.binary(min_size=1, max_size=300)), min_size=1, max_size=12)


def make_parts(parts: Sequence[tuple[bool, bytes]], taken: bytearray | None = None) -> list[Any]:
    return [Range(data, taken) if stored else data for stored, data in parts]


@settings(deadline=None, max_examples=60)
@given(st.lists(PARTS, min_size=1, max_size=6), st.integers(1, 64))
def test_a_pausing_transport_receives_all_data_in_order(responses: list[list[tuple[bool, bytes]]], piece: int) -> None:
    wire = Wire()
    wire.writer = out = ResponseWriter(wire)
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
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    yield ours, theirs
    ours.close()
    theirs.close()


def plain(sock: socket.socket, monkeypatch: pytest.MonkeyPatch) -> Plain:
    monkeypatch.setattr(outlet_module, "_CORK", None)  # a socket pair has no TCP
    wire = Plain(sock)
    wire.writer = ResponseWriter(wire)
    return wire


def test_a_plain_socket_has_a_write_buffer_limit_of_zero(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert plain(pair[0], monkeypatch).high == 0


def test_data_beyond_a_full_socket_buffer_is_sent_when_writing_resumes(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = plain(pair[0], monkeypatch)
    data = bytes(range(256)) * 20_000
    wire.writer.send([data[:100], data[100:]], len(data))
    received = bytearray()
    for _ in range(1000):
        pair[1].setblocking(False)
        try:
            while chunk := pair[1].recv(1 << 20):
                received += chunk
        except BlockingIOError:
            pass
        if wire.writer.paused:  # the transport sends what it holds, then resumes the outlet
            held, wire.written = bytes(wire.written), bytearray()
            pair[0].setblocking(True)
            pair[0].sendall(held)
            pair[0].setblocking(False)
            wire.writer.paused = False
            wire.writer.send_more()
        elif len(received) == len(data):
            break
    assert bytes(received) == data


def test_file_ranges_and_bytes_bypass_the_transports_buffer(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = plain(pair[0], monkeypatch)
    sent = bytearray()
    parts: list[Any] = [b"head" * 10_000, Range(b"file" * 10_000, sent), b"tail"]
    wire.writer.send(parts, sum(map(len, parts)))
    assert bytes(sent) == b"file" * 10_000 and not wire.written
    assert pair[1].recv(1 << 20, socket.MSG_WAITALL | socket.MSG_DONTWAIT) == b"head" * 10_000 + b"tail"


def test_a_truncated_file_raises_instead_of_looping(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = plain(pair[0], monkeypatch)
    with pytest.raises(OSError, match="shorter"):
        wire.writer.send([b"head", Range(b"x" * (JOIN_MAX + 1), bytearray(), step=0)], JOIN_MAX + 5)


def test_joined_concatenates_bytes_and_file_ranges() -> None:
    assert joined([b"a", memoryview(b"b"), Range(b"c", None)]) == b"abc"

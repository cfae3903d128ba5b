"""Python fallback for load.c, used without a C compiler or, for TLS, without OpenSSL headers.

It takes the same arguments, makes the same checks and prints the same line of JSON, but uses more CPU.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import socket
import ssl
import struct
import sys
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.records.batch import CRC_START, advance_sequence, checksum, read_header
from headrace.testing.processes import LOOPBACK

RECEIVE_BYTES = 256 * 1024
STALL_S = 20.0
CONNECTS_AT_ONCE = 16
CONNECT_PAUSE_S = 0.003  # overflowing the listen queue of 50 costs a second each time
WARM_PART = 5  # the warm-up takes at most a fifth of requests_max
_INT32 = struct.Struct(">i")
_UINT32 = struct.Struct(">I")
_INT16 = struct.Struct(">h")
_CONNECTION = struct.Struct("<I")
_CORRELATION_IN_REQUEST = 8
_CORRELATION_IN_RESPONSE = 4
_BATCH_CRC = CRC_START - 4
_BATCH_SEQUENCE = 53


@dataclass
class Arguments:
    port: list[int] = field(default_factory=list)
    pid: list[int] = field(default_factory=list)
    in_flight: int = 1
    requests_max: int = 0
    response_min: int = 9
    response_max: int = 1 << 30
    batch_at: int = -1
    records: int = 0
    warm: float = 0.0
    seconds: float = 0.0
    error_at: list[int] = field(default_factory=list)
    frames: str = ""
    tls: str = ""

    @classmethod
    def parse(cls, command_line: list[str]) -> Arguments:
        arguments = cls()
        for argument in command_line:
            name, _, value = argument.partition("=")
            if name in ("port", "pid", "error_at"):
                getattr(arguments, name).append(int(value))
            else:
                setattr(arguments, name, type(getattr(arguments, name))(value))
        return arguments


class _Connection:
    def __init__(self, port: int, frames: list[bytearray], tls: ssl.SSLContext | None) -> None:
        plain = socket.create_connection((LOOPBACK, port))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket = plain if tls is None else tls.wrap_socket(plain, server_hostname=LOOPBACK)
        self.socket.setblocking(False)
        self.frames = frames
        self.next = 0
        self.unsent: memoryview | None = None
        self.started: deque[float] = deque()  # start times of the requests in flight
        self.correlation_out = self.correlation_in = self.sequence = 0
        self.received = bytearray()


class _Load:
    def __init__(self, arguments: Arguments) -> None:
        self.arguments = arguments
        self.sending, self.counting, self.stopped = True, False, False
        self.requests = self.responses = self.errors = self.first_error = 0
        self.latencies: list[float] = []
        self.last_response_at = time.monotonic()
        self.selector = selectors.DefaultSelector()
        tls = _client_context(arguments.tls) if arguments.tls else None
        self.connections = []
        for number, frames in enumerate(_read_frames(arguments.frames), start=1):
            port = arguments.port[(number - 1) % len(arguments.port)]
            self.connections.append(_Connection(port, frames, tls))
            if number % CONNECTS_AT_ONCE == 0:
                time.sleep(CONNECT_PAUSE_S)
        for connection in self.connections:
            self.selector.register(connection.socket, selectors.EVENT_READ, connection)

    def send_more(self, connection: _Connection) -> None:
        arguments = self.arguments
        while True:
            if connection.unsent is None:
                if not self.sending or len(connection.started) >= arguments.in_flight:
                    break
                if arguments.requests_max and self.requests >= arguments.requests_max:
                    self.sending = False
                    break
                connection.unsent = self._next_frame(connection)
                connection.started.append(time.monotonic())
                self.requests += 1
            try:
                sent = connection.socket.send(connection.unsent)
            except (BlockingIOError, ssl.SSLWantWriteError):
                self.selector.modify(connection.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, connection)
                return
            connection.unsent = connection.unsent[sent:] if sent < len(connection.unsent) else None
        self.selector.modify(connection.socket, selectors.EVENT_READ, connection)

    def _next_frame(self, connection: _Connection) -> memoryview:
        frame = connection.frames[connection.next]
        connection.next = (connection.next + 1) % len(connection.frames)
        _INT32.pack_into(frame, _CORRELATION_IN_REQUEST, connection.correlation_out)
        connection.correlation_out += 1
        at = self.arguments.batch_at
        if at >= 0:
            _INT32.pack_into(frame, at + _BATCH_SEQUENCE, connection.sequence)
            connection.sequence = advance_sequence(connection.sequence, self.arguments.records)
            _UINT32.pack_into(frame, at + _BATCH_CRC, checksum(frame, at, read_header(frame, at).size))
        return memoryview(frame)

    def receive(self, connection: _Connection) -> None:
        received = connection.received
        if isinstance(connection.socket, ssl.SSLSocket):
            received += _receive_decrypted(connection.socket)
        else:
            received += _raise_if_closed(connection.socket.recv(RECEIVE_BYTES))
        now = time.monotonic()
        while len(received) >= 4:
            size = _INT32.unpack_from(received)[0] + 4
            if len(received) < size:
                break
            self._on_response(connection, received, size, now)
            del received[:size]
        self.send_more(connection)

    def _on_response(self, connection: _Connection, response: bytearray, size: int, now: float) -> None:
        arguments = self.arguments
        if _INT32.unpack_from(response, _CORRELATION_IN_RESPONSE)[0] != connection.correlation_in:
            raise SystemExit("load: response out of order")
        connection.correlation_in += 1
        code = next((code for at in arguments.error_at if (code := _INT16.unpack_from(response, at)[0])), 0)
        if code:
            self.first_error = self.first_error or code
            self.errors += 1
        if not arguments.response_min <= size <= arguments.response_max:
            expected = f"{arguments.response_min} to {arguments.response_max}"
            raise SystemExit(f"load: a response of {size} bytes; expected {expected}")
        started = connection.started.popleft()
        if self.counting:
            self.latencies.append(now - started)
        self.responses += 1
        self.last_response_at = now

    def step(self) -> None:
        for key, events in self.selector.select(0.01):
            if events & selectors.EVENT_READ:
                self.receive(key.data)
            else:
                self.send_more(key.data)
        if time.monotonic() - self.last_response_at > STALL_S:
            raise SystemExit(f"load: no response within {STALL_S:.0f} s")

    def stop(self, *_: object) -> None:
        self.stopped = True

    @property
    def is_idle(self) -> bool:
        return not any(connection.started for connection in self.connections)


def _client_context(authority: str) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    return context


def _receive_decrypted(connection: ssl.SSLSocket) -> bytes:
    """Return all available data: the selector does not know what the library has buffered."""
    found = []
    try:
        while True:
            found.append(_raise_if_closed(connection.recv(RECEIVE_BYTES)))
    except ssl.SSLWantReadError:
        return b"".join(found)


def _raise_if_closed(data: bytes) -> bytes:
    if not data:
        raise SystemExit("load: the server closed the connection")
    return data


def _read_frames(path: str) -> list[list[bytearray]]:
    found: list[list[bytearray]] = []
    with open(path, "rb") as file:
        while head := file.read(_CONNECTION.size + _INT32.size):
            (number,), (size,) = _CONNECTION.unpack_from(head), _INT32.unpack_from(head, _CONNECTION.size)
            if number == len(found):
                found.append([])
            found[number].append(bytearray(head[_CONNECTION.size :] + file.read(size)))
    return found


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return user and system time of the processes together."""
    ticks = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat") as file:
            fields = file.read().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def _negotiated(connection: socket.socket) -> str:
    """Return the TLS version and cipher suite, or an empty string for a plain connection."""
    if not isinstance(connection, ssl.SSLSocket):
        return ""
    suite = connection.cipher()
    return f"{connection.version()} {suite[0] if suite else '?'}"


def run(arguments: Arguments) -> dict[str, float | str]:
    load = _Load(arguments)
    signal.signal(signal.SIGTERM, load.stop)
    warm_end = time.monotonic() + arguments.warm
    for connection in load.connections:
        load.send_more(connection)
    warm_requests = arguments.requests_max // WARM_PART or sys.maxsize
    while time.monotonic() < warm_end and load.requests < warm_requests:
        load.step()
    server_cpu, own_cpu, start = cpu_seconds(arguments.pid), time.process_time(), time.monotonic()
    load.counting = True
    end = start + arguments.seconds
    while time.monotonic() < end and not load.stopped and (load.sending or not load.is_idle):
        load.step()
    server_cpu, own_cpu = cpu_seconds(arguments.pid) - server_cpu, time.process_time() - own_cpu
    seconds = time.monotonic() - start
    load.sending = load.counting = False
    while not load.is_idle:
        load.step()
    slowest_last = sorted(load.latencies) or [0.0]

    def quantile_us(share: float) -> float:
        return round(slowest_last[min(int(share * len(slowest_last)), len(slowest_last) - 1)] * 1e6, 1)

    return {
        "seconds": seconds,
        "responses": len(load.latencies),
        "all_responses": load.responses,
        "errors": load.errors,
        "first_error": load.first_error,
        "p50_us": quantile_us(0.5),
        "p99_us": quantile_us(0.99),
        "p999_us": quantile_us(0.999),
        "max_us": round(slowest_last[-1] * 1e6, 1),
        "server_cpu_s": server_cpu,
        "client_cpu_s": own_cpu,
        "tls": _negotiated(load.connections[0].socket),
    }


if __name__ == "__main__":
    print(json.dumps(run(Arguments.parse(sys.argv[1:]))))

"""Clients that send garbage until SIGTERM: `python -m tools.prove.hostile.garbage_clients PORT COUNT`.

A client that is disconnected reconnects after a second with the next kind of garbage, as Kafka's clients reconnect.
Prints `ready` when all of them have connected once, and at the end the counts as one line of JSON.
"""

from __future__ import annotations

import json
import selectors
import signal
import socket
import struct
import sys
import time
from collections import deque
from random import Random

from headrace.testing.processes import LOOPBACK

COME_AGAIN_S = 1.0  # reconnect.backoff.max.ms of Kafka's clients
CONNECTS_AT_ONCE = 16
CONNECT_PAUSE_S = 0.005  # lets others connect: overflowing the listen queue would delay them by a second
CONNECT_S_MAX = 5.0
READ_BYTES = 4096
SEED = 7
_HEADER = struct.Struct(">ihhi")  # size, API key, version, correlation id
_PRODUCE, _UNKNOWN_API = 0, 9999


def kinds(random: Random) -> list[bytes]:
    """Return garbage as an open port receives it, and some that partly follows the protocol."""
    rubbish = random.randbytes(500)
    return [
        rubbish,
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rubbish,  # the start of a TLS handshake
        b"\x00\x00\x00\x00",
        b"\xff\xff\xff\xff" + rubbish,
        _HEADER.pack(len(rubbish) + 8, _UNKNOWN_API, 0, 1) + rubbish,
        _HEADER.pack(len(rubbish) + 8, _PRODUCE, 9, 1) + rubbish,
        _HEADER.pack(len(rubbish) + 8, _PRODUCE, 300, 1) + rubbish,
        _HEADER.pack(100_000_000, _PRODUCE, 9, 1)[:7],  # a request header that is never completed
    ]


class Clients:
    """Clients on bare sockets, because their CPU time is taken from the good client."""

    def __init__(self, port: int, count: int) -> None:
        self._address = (LOOPBACK, port)
        self._said = kinds(Random(SEED))
        self._selector = selectors.DefaultSelector()
        self._coming: deque[tuple[float, int]] = deque((0.0, number) for number in range(count))  # when, and which kind
        self._count = count
        self.connected = self.thrown_out = self.refused = 0
        self.ended = False

    @property
    def is_ready(self) -> bool:
        return self.connected + self.refused >= self._count

    def run(self) -> None:
        is_reported = False
        while not self.ended:
            self._connect_some()
            for key, _ in self._selector.select(CONNECT_PAUSE_S):
                self._look(key.fileobj, key.data)
            if self.is_ready and not is_reported:
                print("ready", flush=True)
                is_reported = True

    def _connect_some(self) -> None:
        now = time.monotonic()
        for _ in range(CONNECTS_AT_ONCE):
            if not self._coming or self._coming[0][0] > now:
                return
            _, number = self._coming.popleft()
            client = socket.socket()
            client.settimeout(CONNECT_S_MAX)
            try:
                client.connect(self._address)
                client.sendall(self._said[number % len(self._said)])
            except OSError:
                self.refused += 1
                self._leave(client, number)
                continue
            client.setblocking(False)
            self.connected += 1
            self._selector.register(client, selectors.EVENT_READ, number)

    def _look(self, client: object, number: int) -> None:
        assert isinstance(client, socket.socket)
        try:
            if client.recv(READ_BYTES):
                return
        except OSError:
            pass
        self.thrown_out += 1
        self._selector.unregister(client)
        self._leave(client, number)

    def _leave(self, client: socket.socket, number: int) -> None:
        client.close()
        self._coming.append((time.monotonic() + COME_AGAIN_S, number + 1))

    def end(self, *_: object) -> None:
        self.ended = True


def main(port: int, count: int) -> None:
    clients = Clients(port, count)
    signal.signal(signal.SIGTERM, clients.end)
    clients.run()
    tally = {"connected": clients.connected, "thrown_out": clients.thrown_out, "refused": clients.refused}
    print(json.dumps({**tally, "cpu_ms": round(time.process_time() * 1000)}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

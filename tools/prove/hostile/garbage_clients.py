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

RECONNECT_S = 1.0  # reconnect.backoff.max.ms of Kafka's clients
CONNECTS_AT_ONCE = 16
CONNECT_PAUSE_S = 0.005  # keeps the listen queue from overflowing, which would delay the good client by a second
CONNECT_S_MAX = 5.0
READ_BYTES = 4096
SEED = 7
_HEADER = struct.Struct(">ihhi")  # size, API key, version, correlation id
_PRODUCE, _UNKNOWN_API = 0, 9999


def kinds(random: Random) -> list[bytes]:
    """Return garbage as an open port receives it, and some that partly follows the protocol."""
    noise = random.randbytes(500)
    return [
        noise,
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + noise,  # the start of a TLS handshake
        b"\x00\x00\x00\x00",
        b"\xff\xff\xff\xff" + noise,
        _HEADER.pack(len(noise) + 8, _UNKNOWN_API, 0, 1) + noise,
        _HEADER.pack(len(noise) + 8, _PRODUCE, 9, 1) + noise,
        _HEADER.pack(len(noise) + 8, _PRODUCE, 300, 1) + noise,
        _HEADER.pack(100_000_000, _PRODUCE, 9, 1)[:7],  # a request header that is never completed
    ]


class Clients:
    """Clients on plain sockets, because any CPU time that they use is lost to the good client."""

    def __init__(self, port: int, count: int) -> None:
        self._address = (LOOPBACK, port)
        self._payloads = kinds(Random(SEED))
        self._selector = selectors.DefaultSelector()
        self._waiting: deque[tuple[float, int]] = deque(
            (0.0, number) for number in range(count)
        )  # connect time and kind
        self._count = count
        self.connected = self.disconnected = self.refused = 0
        self.ended = False

    @property
    def is_ready(self) -> bool:
        return self.connected + self.refused >= self._count

    def run(self) -> None:
        """Connect, send garbage and reconnect until `end` is called."""
        is_reported = False
        while not self.ended:
            self._connect_some()
            for key, _ in self._selector.select(CONNECT_PAUSE_S):
                self._receive(key.fileobj, key.data)
            if self.is_ready and not is_reported:
                print("ready", flush=True)
                is_reported = True

    def _connect_some(self) -> None:
        now = time.monotonic()
        for _ in range(CONNECTS_AT_ONCE):
            if not self._waiting or self._waiting[0][0] > now:
                return
            _, number = self._waiting.popleft()
            client = socket.socket()
            client.settimeout(CONNECT_S_MAX)
            try:
                client.connect(self._address)
                client.sendall(self._payloads[number % len(self._payloads)])
            except OSError:
                self.refused += 1
                self._reconnect_later(client, number)
                continue
            client.setblocking(False)
            self.connected += 1
            self._selector.register(client, selectors.EVENT_READ, number)

    def _receive(self, client: object, number: int) -> None:
        assert isinstance(client, socket.socket)
        try:
            if client.recv(READ_BYTES):
                return
        except OSError:
            pass
        self.disconnected += 1
        self._selector.unregister(client)
        self._reconnect_later(client, number)

    def _reconnect_later(self, client: socket.socket, number: int) -> None:
        client.close()
        self._waiting.append((time.monotonic() + RECONNECT_S, number + 1))

    def end(self, *_: object) -> None:
        self.ended = True


def main(port: int, count: int) -> None:
    clients = Clients(port, count)
    signal.signal(signal.SIGTERM, clients.end)
    clients.run()
    counts = {"connected": clients.connected, "disconnected": clients.disconnected, "refused": clients.refused}
    print(json.dumps({**counts, "cpu_ms": round(time.process_time() * 1000)}), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))

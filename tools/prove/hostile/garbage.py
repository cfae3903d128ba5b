"""Throughput of a good client among a thousand bad ones, and the cost of clients that never complete a request."""

from __future__ import annotations

import json
import selectors
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from bench.line import Options
from bench.lines import all_lines
from bench.memory import reserve_memory
from bench.systems.processes import allow_open_files, rss_bytes
from bench.systems.servers import HEADRACE, Broker, spawn_headrace

from bench import machine
from headrace.testing.processes import LOOPBACK, NodeProcess
from tools.prove.registry import ROOT, print_progress

CONNECTIONS = 1000
ROUNDS = 15
SECONDS = 2.0
ROUND_BYTES_MAX = 1_500_000_000  # more would measure the disk
LOSS_MAX = 0.10
LINE = "produce-64k"
SPARE_FILES = 500
RESERVED_BYTES = 3 * ROUND_BYTES_MAX
RESERVED_BYTES_PER_SECOND = 10**9
CLIENTS_S_MAX = 60.0

IDLE_MS = 2000
SLOW_BYTE_S = 0.25  # seconds between two bytes of a slow client
CONNECTS_AT_ONCE = 20
KB_PER_SLOW_CLIENT_MAX = 16.0
GROWTH_BYTES_MAX = 400_000_000  # growth at which the measurement stops, because other processes need the memory
ENDED_S_MAX = 60.0
# First bytes of slow clients: the size of a request of 100 MB, which is allowed; the size of a small one; and an
# incomplete size.
OPENINGS = ((99_000_000).to_bytes(4, "big"), (1000).to_bytes(4, "big"), b"\x00")


@dataclass(frozen=True)
class Scale:
    connections: int = CONNECTIONS
    rounds: int = ROUNDS
    seconds: float = SECONDS


class Round(NamedTuple):
    """Figures of the good client. CPU time is the node's, for all clients."""

    mb_per_s: float
    cpu_s_per_gb: float


@dataclass
class Throughput:
    alone: list[Round]
    among_bad: list[Round]  # while bad clients send garbage
    disconnected: int = 0  # connections of bad clients that the node closed

    @property
    def loss(self) -> float:
        """Median loss over pairs of rounds, which alternate faster than other load on the machine changes."""
        pairs = zip(self.alone, self.among_bad, strict=True)
        return 1 - statistics.median(among_bad.mb_per_s / alone.mb_per_s for alone, among_bad in pairs)


def measure_throughput(work: Path, scale: Scale = Scale()) -> Throughput:  # noqa: B008 -- it is immutable
    """Measure the good client alone and among bad clients in turn, after one uncounted round of each."""
    allow_open_files(2 * scale.connections + SPARE_FILES)
    options = Options(scale.seconds, work, min(ROUND_BYTES_MAX, machine.bytes_without_throttling()))
    line = all_lines()[LINE]
    broker = Broker(HEADRACE, work / "node", spawn_headrace)
    found = Throughput([], [])
    reserved = reserve_memory(min(RESERVED_BYTES, int(scale.seconds * RESERVED_BYTES_PER_SECOND)))
    try:
        for number in range(scale.rounds + 1):
            alone = Round(**line.measure(broker, f"alone-{number}", options).figures)
            with _bad_clients(broker.port, scale.connections) as counts:
                among_bad = Round(**line.measure(broker, f"among-bad-{number}", options).figures)
            if number:
                found.alone.append(alone)
                found.among_bad.append(among_bad)
                found.disconnected += counts["disconnected"]
                print_progress(
                    f"round {number}: {_text(alone)} alone, {_text(among_bad)} among {scale.connections}, {counts}"
                )
    finally:
        reserved.close()
        broker.close()
    return found


def _text(one: Round) -> str:
    return f"{one.mb_per_s:.0f} MB/s at {one.cpu_s_per_gb:.2f} CPU s/GB"


def _median(rounds: list[Round]) -> Round:
    return Round(*(statistics.median(column) for column in zip(*rounds, strict=True)))


@contextmanager
def _bad_clients(port: int, connections: int) -> Iterator[dict[str, int]]:
    """Run bad clients; their counts are filled in at the end."""
    command = [sys.executable, "-m", "tools.prove.hostile.garbage_clients", str(port), str(connections)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    counts: dict[str, int] = {}
    try:
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:  # select() does not support descriptors of 1,024 and above
            selector.register(process.stdout, selectors.EVENT_READ)
            assert selector.select(CLIENTS_S_MAX), f"the bad clients did not connect within {CLIENTS_S_MAX:.0f} s"
        assert process.stdout.readline() == "ready\n", "the bad clients could not start"
        yield counts
        process.terminate()
        counts.update(json.loads(process.communicate(timeout=CLIENTS_S_MAX)[0]))
    finally:
        process.kill()
        process.communicate()


@dataclass(frozen=True)
class SlowClients:
    """Cost and end of the clients that never complete a request."""

    opened: int
    kb_each: float
    still_open: int  # connections that the node had not closed in time
    ended_s: float  # when the last connection was closed


def measure_slow_clients(work: Path, connections: int = CONNECTIONS) -> SlowClients:
    """Run clients that send a byte now and then but never a whole request."""
    allow_open_files(2 * connections + SPARE_FILES)
    settings = {"connections.max.idle.ms": str(IDLE_MS)}
    with NodeProcess(settings, directory=work / "slow") as node, ExitStack() as stack:
        before = rss_bytes(node.pid)
        clients: list[socket.socket] = []
        started = time.monotonic()
        while len(clients) < connections and rss_bytes(node.pid) - before < GROWTH_BYTES_MAX:
            for _ in range(min(CONNECTS_AT_ONCE, connections - len(clients))):
                client = stack.enter_context(socket.create_connection((LOOPBACK, node.port)))
                client.sendall(OPENINGS[len(clients) % len(OPENINGS)])
                client.setblocking(False)
                clients.append(client)
            time.sleep(0.01)
        opened, growth_max = len(clients), 0
        while clients and time.monotonic() - started < ENDED_S_MAX and growth_max < GROWTH_BYTES_MAX:
            clients = [client for client in clients if _is_open(client)]
            growth_max = max(growth_max, rss_bytes(node.pid) - before)
            time.sleep(SLOW_BYTE_S)
        return SlowClients(opened, growth_max / opened / 1000, len(clients), time.monotonic() - started)


def _is_open(client: socket.socket) -> bool:
    """Send a byte and return whether the connection is still open."""
    try:
        if client.recv(1) == b"":
            return False
    except BlockingIOError:
        pass
    except OSError:
        return False
    try:
        client.send(b"\x00")
    except OSError:
        return False
    return True


def judge(throughput: Throughput, slow: SlowClients, connections: int = CONNECTIONS) -> str:
    """Return the figures. Raise AssertionError listing every broken promise."""
    alone, among_bad = _median(throughput.alone), _median(throughput.among_bad)
    figures = (
        f"{_text(alone)} alone, {_text(among_bad)} among {connections} bad clients ({-throughput.loss:+.1%} by pairs, "
        f"{throughput.disconnected} disconnected); slow ones: {slow.kb_each:.1f} KB each, all closed after {slow.ended_s:.0f} s"
    )
    wrong = []
    if throughput.loss > LOSS_MAX:
        wrong.append(
            f"the good client lost {throughput.loss:.1%} of {alone.mb_per_s:.0f} MB/s, more than the {LOSS_MAX:.0%} allowed"
        )
    if slow.opened < connections or slow.kb_each > KB_PER_SLOW_CLIENT_MAX:
        wrong.append(
            f"{slow.opened} slow clients cost {slow.kb_each:.1f} KB each, more than the {KB_PER_SLOW_CLIENT_MAX:.0f} KB allowed"
        )
    if slow.still_open:
        wrong.append(
            f"{slow.still_open} slow clients are still connected after {slow.ended_s:.0f} s, with connections.max.idle.ms={IDLE_MS}"
        )
    assert not wrong, "; ".join(wrong)
    return figures

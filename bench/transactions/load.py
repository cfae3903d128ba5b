"""Transactional load: producers on one connection each, in one thread, write transactions back to back.

A transaction is one Produce request and EndTxn. After CONCURRENT_TRANSACTIONS a producer retries the same request with
a client's backoff. Only commits between the end of the warm-up and the end of the measured time count. The result is
one line of JSON.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from struct import Struct

from bench.errors import BenchFailed
from bench.load.fallback import cpu_seconds
from bench.load.frames import Batch, make_batch
from bench.load.generator import SLACK_S, Outcome, Span, Target
from bench.paths import ROOT
from bench.systems.requests import Connection
from bench.transactions.frames import (
    END_TXN_VERSION,
    PRODUCE_VERSION,
    EndFrame,
    ProduceFrame,
    end_error_at,
    end_producer_at,
    end_response,
    init_producer,
    produce_errors_at,
    produce_response,
    read_producer,
)
from headrace.base.errors import ErrorCode
from headrace.client.wire.frames import decode_response
from headrace.protocol.apis import ApiKey
from headrace.testing.processes import LOOPBACK

RETRY_PAUSE_S = 0.1  # retry.backoff.ms of Kafka's producer
STALL_S = 20.0
RECEIVE_BYTES = 64 * 1024
POLL_S_MAX = 0.01
_INT32 = Struct(">i")
_INT16 = Struct(">h")
_SIZE_BYTES = 4


@dataclass(frozen=True)
class Transactions:
    """The transactions to write, and the number of producers that write them."""

    topic: str
    partitions: int
    producers: int
    records: int  # records per transaction, split evenly among partitions
    value_bytes: int

    @property
    def transactional_ids(self) -> list[str]:
        return [f"{self.topic}-{number}" for number in range(self.producers)]

    @property
    def batch(self) -> Batch:
        return make_batch(self.records // self.partitions, self.value_bytes, 0, 0, transactional=True)


class _Expected:
    """The responses of a transaction without errors."""

    def __init__(self, load: Transactions) -> None:
        self.produce_bytes = len(produce_response(load.topic, load.partitions))
        self.produce_errors_at = produce_errors_at(load.topic, load.partitions)
        self.end_bytes = len(end_response())
        self.end_error_at = end_error_at()
        self.end_producer_at = end_producer_at()


class _Producer:
    """One transactional producer, with one connection, or two if its coordinator is not the leader of its partitions."""

    def __init__(self, leader: int, coordinator: int, name: str, load: Transactions, expected: _Expected) -> None:
        """Connect to the ports of the leader and of the coordinator."""
        with Connection(coordinator) as connection:
            producer = init_producer(connection, name)
        self._produce = ProduceFrame(name, load.topic, load.batch, load.partitions)
        self._end = EndFrame(name)
        self._set(producer)
        self._expected = expected
        self._correlation_id = 0
        self._received = bytearray()
        self._unsent = memoryview(b"")
        self._leader = _connect(leader)
        self._coordinator = self._leader if coordinator == leader else _connect(coordinator)
        self.is_ending = False  # whether EndTxn rather than Produce is in flight or to be retried
        self.is_busy = False
        self.ends_since = 0.0  # time at which EndTxn was first sent

    def _set(self, producer: tuple[int, int]) -> None:
        self._produce.set_producer(*producer)
        self._end.set_producer(*producer)

    @property
    def sockets(self) -> set[socket.socket]:
        return {self._leader, self._coordinator}

    @property
    def socket(self) -> socket.socket:
        """Return the connection for the request of the current step."""
        return self._coordinator if self.is_ending else self._leader

    @property
    def is_sending(self) -> bool:
        return bool(self._unsent)

    def begin(self) -> None:
        """Start another transaction."""
        self.is_busy = True
        self.is_ending = False
        self.send_request()

    def send_request(self) -> None:
        """Send the request of the current step, possibly once more."""
        self._correlation_id += 1
        frame: ProduceFrame | EndFrame = self._end if self.is_ending else self._produce
        frame.set_correlation_id(self._correlation_id)
        self._unsent = memoryview(frame.data)
        self.send_more()

    def send_more(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._unsent = self._unsent[self.socket.send(self._unsent) :]

    def receive(self) -> bytearray | None:
        """Return the whole response once it has arrived."""
        data = self.socket.recv(RECEIVE_BYTES)
        if not data:
            raise SystemExit("load: the server closed the connection")
        self._received += data
        received = self._received
        if len(received) < _SIZE_BYTES or len(received) < _INT32.unpack_from(received)[0] + _SIZE_BYTES:
            return None
        self._received = bytearray()
        if _INT32.unpack_from(received, _SIZE_BYTES)[0] != self._correlation_id:
            raise SystemExit("load: response out of order")
        return received

    def on_response(self, response: bytearray) -> int:
        """Return the error code; without an error, prepare the next step."""
        if not self.is_ending:
            code = self._produce_error(response)
            if not code:
                self.is_ending = True
                self.ends_since = time.monotonic()
            return code
        if len(response) != self._expected.end_bytes:
            raise SystemExit(f"load: a response of {len(response)} bytes; expected {self._expected.end_bytes}")
        code = int(_INT16.unpack_from(response, self._expected.end_error_at)[0])
        if not code:
            self._set(read_producer(response, self._expected.end_producer_at))
            self.is_busy = False
        return code

    def _produce_error(self, response: bytearray) -> int:
        if len(response) == self._expected.produce_bytes:
            return int(max(_INT16.unpack_from(response, at)[0] for at in self._expected.produce_errors_at))
        frame = memoryview(response)[_SIZE_BYTES:]  # contains an error message
        found = decode_response(ApiKey.PRODUCE, PRODUCE_VERSION, self._correlation_id, frame)
        return max(int(one.error_code) for topic in found.responses for one in topic.partition_responses)


def _connect(port: int) -> socket.socket:
    connection = socket.create_connection((LOOPBACK, port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setblocking(False)
    return connection


class _Load:
    def __init__(self, leader: int, coordinators: Sequence[int], load: Transactions) -> None:
        expected = _Expected(load)
        self.producers = [
            _Producer(leader, coordinators[number % len(coordinators)], name, load, expected)
            for number, name in enumerate(load.transactional_ids)
        ]
        self.starting, self.counting = True, False  # whether producers start further transactions; whether they count
        self.retries = self.committed = 0
        self.latencies: list[float] = []
        self._pausing: list[tuple[float, int]] = []  # deadline and index of each waiting producer
        self._last_response_at = time.monotonic()
        self._selector = selectors.DefaultSelector()
        for number, producer in enumerate(self.producers):
            for connection in producer.sockets:
                self._selector.register(connection, selectors.EVENT_READ, number)

    def begin(self) -> None:
        for number, producer in enumerate(self.producers):
            producer.begin()
            self._watch(number)

    def step(self) -> None:
        now = time.monotonic()
        wait_s = POLL_S_MAX if not self._pausing else min(POLL_S_MAX, max(0.0, self._pausing[0][0] - now))
        for key, events in self._selector.select(wait_s):
            producer = self.producers[key.data]
            if events & selectors.EVENT_WRITE:
                producer.send_more()
                self._watch(key.data)
            if events & selectors.EVENT_READ:
                response = producer.receive()
                if response is not None:
                    self._on_response(key.data, producer, response)
        now = time.monotonic()
        while self._pausing and self._pausing[0][0] <= now:
            _, number = heapq.heappop(self._pausing)
            self.producers[number].send_request()
            self._watch(number)
        if now - self._last_response_at > STALL_S:
            raise SystemExit(f"load: no response within {STALL_S:.0f} s")

    def _watch(self, number: int) -> None:
        producer = self.producers[number]
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if producer.is_sending else 0)
        if self._selector.get_key(producer.socket).events != wanted:
            self._selector.modify(producer.socket, wanted, number)

    def _on_response(self, number: int, producer: _Producer, response: bytearray) -> None:
        self._last_response_at = now = time.monotonic()
        code = producer.on_response(response)
        if code == ErrorCode.CONCURRENT_TRANSACTIONS:
            self.retries += 1
            heapq.heappush(self._pausing, (now + RETRY_PAUSE_S, number))
            return
        if code:
            request = f"EndTxn {END_TXN_VERSION}" if producer.is_ending else f"Produce {PRODUCE_VERSION}"
            raise SystemExit(f"load: {request} failed with error {code}")
        if producer.is_busy:
            producer.send_request()
        else:
            self.committed += 1
            if self.counting:
                self.latencies.append(now - producer.ends_since)
            if self.starting:
                producer.begin()
        self._watch(number)

    @property
    def is_idle(self) -> bool:
        return not any(producer.is_busy for producer in self.producers)


def run(target: Target, load: Transactions, span: Span) -> dict[str, float]:
    leader, *coordinators = target.ports
    running = _Load(leader, coordinators or [leader], load)
    running.begin()
    warm_end = time.monotonic() + span.warm
    while time.monotonic() < warm_end:
        running.step()
    running.counting, running.retries = True, 0
    server_cpu, own_cpu, start = cpu_seconds(target.pids), time.process_time(), time.monotonic()
    while time.monotonic() < start + span.seconds:
        running.step()
    running.starting = running.counting = False
    seconds = time.monotonic() - start
    server_cpu, own_cpu, retries = cpu_seconds(target.pids) - server_cpu, time.process_time() - own_cpu, running.retries
    while not running.is_idle:
        running.step()
    slowest_last = sorted(running.latencies) or [0.0]

    def quantile_us(share: float) -> float:
        return round(slowest_last[min(int(share * len(slowest_last)), len(slowest_last) - 1)] * 1e6, 1)

    return {
        "seconds": seconds,
        "responses": len(running.latencies),
        "all_responses": running.committed,
        "errors": 0,
        "first_error": 0,
        "p50_us": quantile_us(0.5),
        "p99_us": quantile_us(0.99),
        "p999_us": quantile_us(0.999),
        "max_us": quantile_us(1.0),
        "server_cpu_s": server_cpu,
        "client_cpu_s": own_cpu,
        "retries": retries,
    }


def run_transactions(target: Target, load: Transactions, span: Span) -> tuple[Outcome, int]:
    """Run the load in a separate process. Return its outcome, whose responses are commits, and its retries.

    The first port is that of the partitions' leader. Further ones, if any, are those of the producers' coordinators in turn.
    """
    values: dict[str, object] = {"warm": span.warm, "seconds": span.seconds}
    values |= {"ports": ",".join(map(str, target.ports)), "pids": ",".join(map(str, target.pids))}
    values |= {field.name: getattr(load, field.name) for field in fields(load)}
    arguments = [f"{name}={value}" for name, value in values.items()]
    command = [sys.executable, "-m", "bench.transactions.load", *arguments]
    limit_s = span.warm + span.seconds + SLACK_S
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit_s)
    if done.returncode != 0:
        raise BenchFailed(f"the load generator failed: {done.stderr.strip()}")
    result = json.loads(done.stdout)
    retries = int(result.pop("retries"))
    outcome = Outcome(**result, payload_bytes=load.records * load.value_bytes)
    if outcome.responses == 0:
        raise BenchFailed("no transaction was committed within the measured time")
    return outcome, retries


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)


def main(command_line: list[str]) -> None:
    values = dict(argument.split("=", 1) for argument in command_line)
    load = Transactions(
        values["topic"],
        int(values["partitions"]),
        int(values["producers"]),
        int(values["records"]),
        int(values["value_bytes"]),
    )
    span = Span(float(values["seconds"]), float(values["warm"]))
    try:
        result = run(Target(_numbers(values["ports"]), _numbers(values["pids"])), load, span)
    except BenchFailed as error:
        raise SystemExit(f"load: {error}") from None
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1:])

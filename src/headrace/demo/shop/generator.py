"""The process that writes the shop's events.

    python -m headrace.demo.shop.generator localhost:9092 --rate 1000 --events 100000

It continues where the topics end, with the events in their order, and never gets far ahead in one partition: pipelines would drop events
that are later than their watermark.
"""

from __future__ import annotations

import argparse
import logging
import signal
import sys
import threading
import time
from array import array
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from itertools import accumulate
from typing import TYPE_CHECKING

from headrace.base.errors import HeadraceError
from headrace.base.ids import TopicPartition
from headrace.client import Producer
from headrace.demo.parent_process import end_with_parent
from headrace.demo.shop.layout import Layout
from headrace.demo.shop.requests import Shop, check_offset
from headrace.observe.log_format import LineFormatter, log_to_stderr

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.client.producer.deliveries import SentRange

TURN_S = 0.1
EVENTS_AT_ONCE_MAX = 2_000  # maximum distance between partitions: 20 s on the shop's clock
BEHIND_S_MAX = 5.0  # maximum delay that is made up for by sending faster
DELIVERY_S_MAX = 150.0  # longer than the producer's own delivery.timeout.ms
COMPRESSION = "lz4"

log = logging.getLogger("headrace.demo")


class Pace:
    """Decides how many events are due; a rate of 0 means no limit."""

    def __init__(self, rate: float, now: float) -> None:
        self._rate = rate
        self._since = now
        self._sent = 0

    def due(self, now: float) -> int:
        if self._rate <= 0:
            return EVENTS_AT_ONCE_MAX
        behind_s = now - self._since - self._sent / self._rate
        if behind_s > BEHIND_S_MAX:
            self._since += behind_s - BEHIND_S_MAX
        return min(EVENTS_AT_ONCE_MAX, int((now - self._since) * self._rate) - self._sent)

    def sent(self, events: int) -> None:
        self._sent += events

    def wait_s(self, now: float) -> float:
        """Return the seconds until the events of TURN_S, at least one, are due."""
        if self._rate <= 0:
            return 0.0
        return max(0.0, self._since + (self._sent + max(1.0, self._rate * TURN_S)) / self._rate - now)


class Generator:
    def __init__(self, producer: Producer, layout: Layout, ends: Mapping[TopicPartition, int]) -> None:
        self._producer = producer
        self._layout = layout
        self._ends = dict(ends)
        self.next_event = layout.frontier(ends).low

    def send(self, events: int) -> None:
        """Send the next events, and return when all are written in every partition."""
        import pyarrow as pa

        end = self.next_event + events
        under_way: list[tuple[TopicPartition, range, Future[list[SentRange]]]] = []
        for partition, offsets in self._layout.missing(self.next_event, end, self._ends).items():
            records = [self._layout.record(partition, offset) for offset in offsets]
            columns = [_column([one.key for one in records]), _column([one.value for one in records])]
            rows = pa.record_batch(columns, names=["key", "value"])
            sent = self._producer.send_batch(partition.topic, rows, partition=partition.partition)
            under_way.append((partition, offsets, sent))
        for partition, offsets, sent in under_way:
            expected = offsets.start
            for part in sorted(sent.result(DELIVERY_S_MAX), key=lambda one: one.base_offset):
                check_offset(partition, expected, part.base_offset)
                expected += part.rows
            self._ends[partition] = offsets.stop
        self.next_event = end


def _column(values: list[bytes]) -> pa.Array:
    """Do what `pa.array` does without loading pandas (50 MB), which it uses to check its argument."""
    import pyarrow as pa

    offsets = array("i", accumulate(map(len, values), initial=0))
    return pa.Array.from_buffers(
        pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    )


def generate(
    bootstrap: str,
    *,
    rate: float,
    events: int | None,
    stop: threading.Event,
    clock: Callable[[], float] = time.monotonic,
) -> int:
    """Generate events until there are `events` in all or `stop` is set; return how many there are."""
    with Shop(bootstrap) as shop:
        layout = shop.layout()
        shop.ring(layout)
        ends = shop.ends()
    with Producer({"bootstrap.servers": bootstrap, "compression.type": COMPRESSION}) as producer:
        generator = Generator(producer, layout, ends)
        # After a kill some partitions may be ahead of others; their events count towards the goal.
        goal = None if events is None else max(events, layout.frontier(ends).high)
        log.info("%d events are written; %s", generator.next_event, "without end" if goal is None else f"up to {goal}")
        pace = Pace(rate, clock())
        while not stop.is_set() and (goal is None or generator.next_event < goal):
            due = pace.due(clock())
            if goal is not None:
                due = min(due, goal - generator.next_event)
            if due > 0:
                generator.send(due)
                pace.sent(due)
            stop.wait(pace.wait_s(clock()))
        log.info("%d events are written", generator.next_event)
        return generator.next_event


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="headrace.demo.shop.generator", description="Events of a web shop.")
    parser.add_argument("bootstrap", help="brokers to connect to first, as host:port")
    parser.add_argument("--rate", type=float, default=1000.0, help="events a second; 0: as fast as can be")
    parser.add_argument("--events", type=int, help="end when there are so many in all")
    given = parser.parse_args(arguments)
    log_to_stderr("INFO", LineFormatter())
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    end_with_parent()
    try:
        generate(given.bootstrap, rate=given.rate, events=given.events, stop=stop)
    except (HeadraceError, TimeoutError) as error:
        log.error("%s", error or "the brokers have not responded for a long time")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

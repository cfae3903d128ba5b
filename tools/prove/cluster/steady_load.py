"""A steady load of idempotent writes, with the record of what was acknowledged."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

from tools.prove.transactions.reading import UNCOMMITTED, read_all

WRITES_PER_S = 400
PAUSE_S = 0.01
DELIVERED_S_MAX = 120.0
SHOWN = 3


class SteadyLoad:
    """A producer of confluent-kafka with acks=all that writes distinct values at a fixed rate, in a thread of its own."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        from confluent_kafka import Producer

        self._bootstrap = bootstrap
        self._topic = topic
        self._partitions = partitions
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "acks": "all",
                "enable.idempotence": True,
                "log_level": 0,
                "error_cb": self._note_error,
            }
        )
        self._is_stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="steady load", daemon=True)
        self._acknowledged_at = time.monotonic()
        self.written = 0
        self.acknowledged = 0
        self.ends: dict[int, int] = dict.fromkeys(range(partitions), 0)  # offset behind the last acknowledged record
        self.longest_gap_s = 0.0  # between two acknowledgements, since the last call of `take_longest_gap_s`
        self.failures: list[str] = []

    def start(self) -> None:
        self._acknowledged_at = time.monotonic()
        self._thread.start()

    def _run(self) -> None:
        try:
            self._write_until_stopped()
        except Exception as error:
            self.failures.append(f"the thread of the load has ended: {error!r}")
            raise

    def _write_until_stopped(self) -> None:
        started = time.monotonic()
        while not self._is_stopped.is_set():
            due = int((time.monotonic() - started) * WRITES_PER_S)
            while self.written < due and not self._is_stopped.is_set():
                self._write_one()
            self._producer.poll(PAUSE_S)

    def _write_one(self) -> None:
        value = b"%d" % self.written
        try:
            self._producer.produce(
                self._topic, value, partition=self.written % self._partitions, on_delivery=self._note_delivery
            )
        except BufferError:  # a full queue while the cluster does not acknowledge
            self._producer.poll(PAUSE_S)
            return
        self.written += 1

    def _note_delivery(self, error: Any, message: Any) -> None:
        now = time.monotonic()
        self.longest_gap_s = max(self.longest_gap_s, now - self._acknowledged_at)
        self._acknowledged_at = now
        if error is not None:
            self.failures.append(f"a record was refused: {error}")
            return
        self.acknowledged += 1
        partition, offset = message.partition(), message.offset()
        if offset is not None and offset >= 0:  # the response to a retry of a written record may have no offset
            self.ends[partition] = max(self.ends[partition], offset + 1)

    def take_longest_gap_s(self) -> float:
        """Return the longest time between two acknowledgements since the last call."""
        longest, self.longest_gap_s = self.longest_gap_s, 0.0
        return longest

    def _note_error(self, error: Any) -> None:
        if error.fatal():
            self.failures.append(f"a fatal error of the producer: {error}")

    def finish(self) -> None:
        """Stop writing and wait for all acknowledgements. Raise AssertionError if one is missing or was an error."""
        self._stop()
        left = self._producer.flush(DELIVERED_S_MAX)
        assert not left, f"{left} of {self.written} records had no response within {DELIVERED_S_MAX:.0f} s"
        assert not self.failures, f"the load had {len(self.failures)} errors: {self.failures[:SHOWN]}"

    def check_log(self) -> None:
        """Raise AssertionError unless the topic has every written value once."""
        places = [(self._topic, index) for index in range(self._partitions)]
        found = Counter(
            int(value) for part in read_all(self._bootstrap, places, UNCOMMITTED).values() for _, value in part
        )
        lost = set(range(self.written)) - found.keys()
        doubled = [value for value, times in found.items() if times > 1]
        assert not lost and not doubled, (
            f"of {self.written} records {len(lost)} are lost ({sorted(lost)[:SHOWN]}) and "
            f"{len(doubled)} are doubled ({sorted(doubled)[:SHOWN]})"
        )

    def _stop(self) -> None:
        self._is_stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def close(self) -> None:
        self._stop()
        self._producer.purge()

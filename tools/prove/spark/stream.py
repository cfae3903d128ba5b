"""A running stream of windows: its input, its program, and its expected output."""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.prove.spark import topics
from tools.prove.spark.programs import Program
from tools.prove.spark.sessions import POLL_S
from tools.prove.spark.windows import FINISH, LAST_KEY, LAST_NUMBER, LATE_MS_MAX, WINDOW_MS, Route, result
from tools.prove.transactions.reading import COMMITTED, UNCOMMITTED, read_all, undecided

PARTITIONS_IN, PARTITIONS_OUT = 4, 2
KEYS = 7
STEP_MS = 50  # between the timestamps of two records
FEED, FEED_BELOW = 300, 240  # records per feed, and the backlog below which more are fed
ROWS_MAX = 60  # maximum rows of a micro-batch
FLUSH_S_MAX = 120.0
PROGRESS_S_MAX = 240.0  # maximum time between two micro-batches, whatever was killed meanwhile
FINISHED_S_MAX = 300.0
ENDED_S_MAX = 60.0
SHOWN = 5
# Errors that no kill may cause and no restart can repair.
BAD_ENDS = ("TornBatch", "set back", "DataLoss")


class Stream:
    """A stream with continuous input, restarted whenever its program exits."""

    def __init__(
        self, bootstrap: str, *, replicas: int, base_ms: int, master: str, environment: Mapping[str, str]
    ) -> None:
        from confluent_kafka import Producer

        self._temporary = tempfile.TemporaryDirectory(prefix="spark-windows-")
        folder = Path(self._temporary.name)
        self._log = folder / "spark.log"
        self._environment = environment
        self._base_ms = base_ms - base_ms % WINDOW_MS
        self.route = Route(
            master, bootstrap, "numbers", "windows", str(folder / "checkpoint"), str(folder / "batch.json"), ROWS_MAX
        )
        topics.create(bootstrap, {self.route.source: PARTITIONS_IN, self.route.target: PARTITIONS_OUT}, replicas)
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "log_level": 0})
        self._expected: dict[tuple[int, str], list[int]] = {}  # count and sum by window and key
        self.fed = self.position = self.batches = self.failures = self.starts = 0
        self._progress_at = time.monotonic()
        self._replaced: list[Program] = []
        self.program = self._start()

    def _start(self) -> Program:
        self.starts += 1
        return Program("tools.prove.spark.windows", self.route.text(), log=self._log, environment=self._environment)

    def feed(self, count: int = FEED) -> None:
        """Write the records and wait for them, so that time in one partition does not run far ahead of others."""
        for number in range(self.fed, self.fed + count):
            at, key = self._base_ms + number * STEP_MS, f"k{number * number % KEYS}"
            self._put(number % PARTITIONS_IN, number, key, at)
            totals = self._expected.setdefault((at - at % WINDOW_MS, key), [0, 0])
            totals[0] += 1
            totals[1] += number
        self.fed += count
        self._flush()

    def _put(self, partition: int, number: int, key: str, at: int) -> None:
        self._producer.produce(self.route.source, str(number), key, partition=partition, timestamp=at)

    def _flush(self) -> None:
        assert self._producer.flush(FLUSH_S_MAX) == 0, "the input could not be written"

    def poll(self) -> None:
        """Process events, feed input, and restart the program if it has exited."""
        if self.fed - self.position < FEED_BELOW:
            self.feed()
        self._process_events()
        if not self.program.is_running:
            self.restart()
        time.sleep(POLL_S)

    def _process_events(self) -> None:
        for event in self.program.read_events():
            if event["name"] == "batch":
                self._progress_at = time.monotonic()
                self.batches += 1
                self.position = max(self.position, event["position"])
                assert not event["dropped"], (
                    f"{event['dropped']} rows came too late for their window, so the check itself is wrong"
                )
            elif event["name"] == "failed":
                self.failures += 1
                text = event["text"]
                assert not any(word in text for word in BAD_ENDS), (
                    f"the query failed with an error that no kill may cause: {text}"
                )
        idle_s = time.monotonic() - self._progress_at
        assert idle_s < PROGRESS_S_MAX, f"no batch was completed within {PROGRESS_S_MAX:.0f} s: {self.log_end()}"

    def restart(self) -> None:
        """Start the program again; workers of the previous one may still be running."""
        self._replaced.append(self.program)
        self.program = self._start()

    def restart_after_exit(self) -> None:
        """Restart the program after a normal exit, in which the JVM writes its class archive for faster starts."""
        self.program.finish()
        self._process_events()
        self.restart()

    def wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.poll()

    def wait_for_batches(self, count: int) -> None:
        """Poll until this many more batches are complete."""
        wanted = self.batches + count
        while self.batches < wanted:
            self.poll()

    def log_end(self) -> str:
        """Return the last failure of the query and the end of the program's log."""
        failures = [one["text"] for one in self.program.events if one["name"] == "failed"]
        return f"{failures[-1:]} {self.program.log_end()}"

    def finish(self) -> str:
        """Complete the stream and return a summary. Raise AssertionError unless its output equals the batch."""
        last_ms = self._base_ms + self.fed * STEP_MS + 2 * LATE_MS_MAX
        for partition in range(PARTITIONS_IN):
            self._put(partition, LAST_NUMBER, LAST_KEY, last_ms)
        self._flush()
        wanted = Counter(result(start, key, *totals) for (start, key), totals in self._expected.items())
        self._wait_for_output(len(wanted))
        self.program.send(FINISH)
        self.program.wait_for_event("finished", FINISHED_S_MAX)
        self.program.finish()
        batch = Counter(json.loads(Path(self.route.batch_file).read_text()))
        assert batch == wanted, f"the batch job does not have the expected result: {_difference(batch, wanted)}"
        self._wait_for_open_transactions()
        found = self._output(COMMITTED)
        assert found == batch, (
            f"the output of the stream differs from that of the batch job: {_difference(found, batch)}"
        )
        hidden = self._output(UNCOMMITTED).total() - found.total()
        return f"{self.fed} records, {self.batches} batches, {found.total()} rows once each, {hidden} hidden"

    @property
    def _places(self) -> list[tuple[str, int]]:
        return [(self.route.target, partition) for partition in range(PARTITIONS_OUT)]

    def _output(self, isolation: str) -> Counter[str]:
        read = read_all(self.route.bootstrap, self._places, isolation)
        return Counter(value for records in read.values() for _, value in records)

    def _wait_for_output(self, count: int) -> None:
        deadline = time.monotonic() + FINISHED_S_MAX
        read_at = -1
        while True:
            if self.batches != read_at:
                read_at = self.batches
                found = self._output(COMMITTED).total()
                if found >= count:
                    return
            assert time.monotonic() < deadline, (
                f"only {found} of {count} rows were written within {FINISHED_S_MAX:.0f} s: {self.log_end()}"
            )
            self._process_events()
            if not self.program.is_running:
                self.restart()
            time.sleep(POLL_S)

    def _wait_for_open_transactions(self) -> None:
        deadline = time.monotonic() + ENDED_S_MAX
        while is_open := undecided(self.route.bootstrap, self._places):
            assert time.monotonic() < deadline, f"transactions stay open in {is_open}"
            time.sleep(POLL_S)

    def close(self) -> None:
        for program in (self.program, *self._replaced):
            program.close()
        self._producer.purge()
        self._temporary.cleanup()

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()


def _difference(found: Counter[str], wanted: Counter[str]) -> str:
    lost, new = list((wanted - found).elements()), list((found - wanted).elements())
    twice = sum(count > 1 for count in found.values())
    return f"{len(lost)} are lost ({lost[:SHOWN]}), {len(new)} are unexpected ({new[:SHOWN]}), {twice} are duplicated"

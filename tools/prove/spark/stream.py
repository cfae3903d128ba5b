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
from tools.prove.spark.sessions import TURN_S
from tools.prove.spark.windows import FINISH, LAST_KEY, LAST_NUMBER, LATE_MS_MAX, WINDOW_MS, Route, result
from tools.prove.transactions.reading import COMMITTED, UNCOMMITTED, read_all, undecided

PARTITIONS_IN, PARTITIONS_OUT = 4, 2
KEYS = 7
STEP_MS = 50  # between the timestamps of two records
FEED, FEED_BELOW = 300, 240  # records per feed, and the backlog below which more are fed
ROWS_MAX = 60  # maximum rows of a micro-batch
FED_S_MAX = 120.0
MOVES_S_MAX = 240.0  # maximum time between two micro-batches, whatever was killed meanwhile
FINISHED_S_MAX = 300.0
ENDED_S_MAX = 60.0
SHOWN = 5
# Errors that no kill may cause and no restart can repair.
BAD_ENDS = ("TornBatch", "set back", "DataLoss")


class Stream:
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
        self._expected: dict[tuple[int, str], list[int]] = {}
        self.fed = self.position = self.batches = self.failures = self.starts = 0
        self._moved_at = time.monotonic()
        self._gone: list[Program] = []
        self.program = self._started()

    def _started(self) -> Program:
        self.starts += 1
        return Program("tools.prove.spark.windows", self.route.text(), log=self._log, environment=self._environment)

    def feed(self, count: int = FEED) -> None:
        """Write the records and wait for them, so that time in one partition does not run far ahead of others."""
        for number in range(self.fed, self.fed + count):
            at, key = self._base_ms + number * STEP_MS, f"k{number * number % KEYS}"
            self._put(number % PARTITIONS_IN, number, key, at)
            tally = self._expected.setdefault((at - at % WINDOW_MS, key), [0, 0])
            tally[0] += 1
            tally[1] += number
        self.fed += count
        self._flush()

    def _put(self, partition: int, number: int, key: str, at: int) -> None:
        self._producer.produce(self.route.source, str(number), key, partition=partition, timestamp=at)

    def _flush(self) -> None:
        assert self._producer.flush(FED_S_MAX) == 0, "the input could not be written"

    def turn(self) -> None:
        """Process events, feed input, and restart the program if it has exited."""
        if self.fed - self.position < FEED_BELOW:
            self.feed()
        self._hear()
        if not self.program.is_there:
            self.restart()
        time.sleep(TURN_S)

    def _hear(self) -> None:
        for said in self.program.listen():
            if said["name"] == "batch":
                self._moved_at = time.monotonic()
                self.batches += 1
                self.position = max(self.position, said["position"])
                assert not said["dropped"], f"{said['dropped']} rows came too late for their window: the check is wrong"
            elif said["name"] == "failed":
                self.failures += 1
                text = said["text"]
                assert not any(word in text for word in BAD_ENDS), f"the query cannot go on: {text}"
        still_s = time.monotonic() - self._moved_at
        assert still_s < MOVES_S_MAX, f"nothing moves any more: {self.last_words()}"

    def restart(self) -> None:
        """Start the program again; workers of the previous one may still be running."""
        self._gone.append(self.program)
        self.program = self._started()

    def end(self) -> None:
        """Restart the program after a normal exit, in which the JVM writes its class archive for faster starts."""
        self.program.end()
        self._hear()
        self.restart()

    def wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.turn()

    def wait_for_batches(self, count: int) -> None:
        wanted = self.batches + count
        while self.batches < wanted:
            self.turn()

    def last_words(self) -> str:
        failures = [one["text"] for one in self.program.said if one["name"] == "failed"]
        return f"{failures[-1:]} {self.program.log_end()}"

    def finish(self) -> str:
        """Complete the stream and return a summary. Raise AssertionError unless its output equals the batch."""
        last_ms = self._base_ms + self.fed * STEP_MS + 2 * LATE_MS_MAX
        for partition in range(PARTITIONS_IN):
            self._put(partition, LAST_NUMBER, LAST_KEY, last_ms)
        self._flush()
        wanted = Counter(result(start, key, *tally) for (start, key), tally in self._expected.items())
        self._until_it_is_all_there(len(wanted))
        self.program.ask(FINISH)
        self.program.heard("finished", FINISHED_S_MAX)
        self.program.end()
        batch = Counter(json.loads(Path(self.route.batch_file).read_text()))
        assert batch == wanted, f"the batch is not what the records say: {_difference(batch, wanted)}"
        self._until_nothing_is_open()
        found = self._output(COMMITTED)
        assert found == batch, f"the output of the stream is not that of the batch: {_difference(found, batch)}"
        hidden = self._output(UNCOMMITTED).total() - found.total()
        return f"{self.fed} records, {self.batches} batches, {found.total()} rows once each, {hidden} hidden"

    @property
    def _places(self) -> list[tuple[str, int]]:
        return [(self.route.target, partition) for partition in range(PARTITIONS_OUT)]

    def _output(self, isolation: str) -> Counter[str]:
        read = read_all(self.route.bootstrap, self._places, isolation)
        return Counter(value for records in read.values() for _, value in records)

    def _until_it_is_all_there(self, count: int) -> None:
        deadline = time.monotonic() + FINISHED_S_MAX
        looked_at = -1
        while True:
            if self.batches != looked_at:
                looked_at = self.batches
                found = self._output(COMMITTED).total()
                if found >= count:
                    return
            assert time.monotonic() < deadline, f"{found} of {count} rows are there: {self.last_words()}"
            self._hear()
            if not self.program.is_there:
                self.restart()
            time.sleep(TURN_S)

    def _until_nothing_is_open(self) -> None:
        deadline = time.monotonic() + ENDED_S_MAX
        while is_open := undecided(self.route.bootstrap, self._places):
            assert time.monotonic() < deadline, f"transactions are open in {is_open}, and nobody will end them"
            time.sleep(TURN_S)

    def close(self) -> None:
        for program in (self.program, *self._gone):
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
    return f"{len(lost)} are lost ({lost[:SHOWN]}), {len(new)} should not be there ({new[:SHOWN]}), {twice} are there twice"

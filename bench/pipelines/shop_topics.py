"""The demo's topics on a server: filled by its generator, with results compared to the expected ones."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from bench.errors import BenchFailed
from bench.pipelines.topic_reader import TopicReader, json_value
from bench.systems.servers import Broker
from headrace.demo.results.expected import RESULTS, Rows
from headrace.demo.results.summary import compare
from headrace.demo.shop.events import PARTITIONS
from headrace.demo.shop.layout import Layout
from headrace.demo.shop.requests import Shop
from headrace.demo.shop.topics import TOPICS
from headrace.testing.processes import LOOPBACK

FILL_S_MAX = 600.0
END_S_MAX = 30.0
LOG_SHOWN_CHARACTERS = 2000


class ShopTopics:
    """Keeps the shop's topics on one server at a time; requesting others replaces them."""

    def __init__(self) -> None:
        # Server, its pid (it may have been restarted since) and the number of events, None if they arrive while queries
        # run.
        self._cached: tuple[Broker, int, int | None] | None = None

    def fill(self, server: Broker, events: int, work: Path) -> None:
        """Fill the topics with this many events, unless they are, and close the shop, so that all windows can end."""
        if self._cached == (server, server.pid, events):
            return
        self.create_empty(server)
        self._cached = None  # until filling is complete
        with Generator(server, work, events=events) as generator:
            generator.finish(FILL_S_MAX)
        with Shop(_bootstrap(server)) as shop:
            closings = shop.close_day(events).closings
        if closings != (events,):
            raise BenchFailed(f"the shop closed after {closings} events instead of {events}")
        self._cached = (server, server.pid, events)

    def create_empty(self, server: Broker) -> None:
        """Create the shop's topics with its customers but no events."""
        self.clear()
        self._cached = (server, server.pid, None)
        with Shop(_bootstrap(server)) as shop:
            shop.prepare()

    def clear(self) -> None:
        """Delete the topics, unless their server was closed or restarted."""
        if self._cached is not None:
            server, pid, _ = self._cached
            if server.is_running and server.pid == pid:
                for topic in TOPICS:
                    server.delete_topic(topic.name)
        self._cached = None


class Generator:
    """The demo's event generator in a separate process that ends with this one."""

    def __init__(self, server: Broker, work: Path, *, events: int, rate: float = 0.0) -> None:
        """Prepare the command; a rate of 0 is as fast as possible."""
        self._command = [sys.executable, "-m", "headrace.demo.shop.generator", _bootstrap(server)]
        self._command += ["--rate", str(rate), "--events", str(events)]
        self._log = work / "generator.log"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Generator:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=log, stderr=log)
        return self

    def __exit__(self, *exc: object) -> None:
        assert self._process is not None and self._process.stdin is not None
        self._process.kill()
        self._process.wait(END_S_MAX)
        self._process.stdin.close()

    def finish(self, seconds_max: float) -> None:
        """Wait until all events are written. Raise BenchFailed with the end of its log if that fails."""
        assert self._process is not None
        try:
            code = self._process.wait(seconds_max)
        except subprocess.TimeoutExpired:
            code = None
        if code != 0:
            problem = f"did not end within {seconds_max:.0f} s" if code is None else f"ended with code {code}"
            log_tail = self._log.read_text(errors="replace")[-LOG_SHOWN_CHARACTERS:]
            raise BenchFailed(f"the event generator {problem}: {log_tail}")


@contextmanager
def result_topics(server: Broker, suffix: str) -> Iterator[Mapping[str, str]]:
    """Create result topics for one round, by result name, and delete them afterwards."""
    topics = {result.name: result.topic + suffix for result in RESULTS}
    created: list[str] = []
    try:
        for topic in topics.values():
            server.create_topic(topic, PARTITIONS)
            created.append(topic)
        yield topics
    finally:
        for topic in created:
            server.delete_topic(topic)


@lru_cache(maxsize=1)
def expected_rows(events: int) -> Mapping[str, Rows]:
    """Return the expected rows by result name, for a shop that closed after this many events."""
    layout = Layout([events])
    return {result.name: result.wanted(layout, events) for result in RESULTS}


def check_results(name: str, server: Broker, topics: Mapping[str, str], events: int) -> dict[str, int]:
    """Return the number of rows of each result. Raise BenchFailed unless they are exactly the expected ones."""
    found = {result.name: _read_rows(server, topics[result.name], result.name) for result in RESULTS}
    return check_rows(name, expected_rows(events), found)


def check_rows(name: str, expected: Mapping[str, Rows], found: Mapping[str, Rows]) -> dict[str, int]:
    """Return the number of rows of each result. Raise BenchFailed unless they are exactly the expected ones."""
    for result, rows in expected.items():
        one = compare(result, rows, found[result])
        if not one.is_right:
            example = [*one.lost, *one.wrong, *one.doubled][:1]
            raise BenchFailed(
                f"{name}: {one.found} {result} instead of {one.wanted}: {one.lost_rows} lost, "
                f"{one.wrong_rows} not expected, {one.doubled_rows} twice; such as {example}"
            )
    return {result: rows.total() for result, rows in found.items()}


def _read_rows(server: Broker, topic: str, name: str) -> Rows:
    (result,) = [one for one in RESULTS if one.name == name]
    with TopicReader(server.port, topic, partitions=PARTITIONS) as reader:
        return Rows(result.row(json_value(message)) for message in reader.read_to_the_end())


def _bootstrap(server: Broker) -> str:
    return f"{LOOPBACK}:{server.port}"

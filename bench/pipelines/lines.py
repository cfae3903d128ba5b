"""The lines of the pipelines chapter.

The demo's pipeline runs on Headrace, exactly once, and with Spark's own connector on Kafka, at least once.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from testkit.spark_connector import connector_missing

from bench.errors import CannotRun
from bench.line import Figure, Line, Measurement, Options
from bench.pipelines.demo import DemoMemory, DemoRuns, FirstResult
from bench.pipelines.latency import MS_PER_S, arrivals, latencies, order_times, percentile
from bench.pipelines.program import START, STOP, TO_THE_END, ShopJob, ShopResult
from bench.pipelines.shop_topics import Generator, ShopTopics, check_results, result_topics
from bench.pipelines.topic_reader import TopicReader, reader_missing
from bench.spark.driver import SparkDriver
from bench.spark.lines import spark_missing
from bench.spark.program import CONNECTOR_FORMAT, HEADRACE_FORMAT
from bench.systems.clients import CONNECTOR_AT_KAFKA, MeasuredClient, server_named
from bench.systems.processes import cpu_seconds
from bench.systems.servers import HEADRACE, KAFKA, Broker, System
from headrace.demo.shop.events import PARTITIONS, orders_among
from headrace.testing.processes import LOOPBACK

PROGRAM = ("-m", "bench.pipelines.program")
NO_WORSE = 1.0
LATE_S_MAX = 120.0  # maximum delay of the last result after the last event
MEGABYTE = 1e6
ROWS_FIGURES = (
    Figure("rows_per_s", "rows/s", True, goal=NO_WORSE),
    Figure("cpu_us_per_row", "CPU of Spark's processes and the server, µs/row", False, digits=1),
)
LATENCY_FIGURES = (
    Figure("p50_ms", "p50 ms", False, goal=NO_WORSE),
    Figure("p99_ms", "p99 ms", False, goal=NO_WORSE),
    Figure("server_mb", "resident memory of the server, MB", False),
)


class ShopEngines:
    """A driver for each side, used by both lines, and the shop's topics on its server."""

    def __init__(self) -> None:
        self._servers = {HEADRACE: HEADRACE, CONNECTOR_AT_KAFKA: KAFKA}
        self.drivers = {
            HEADRACE: SparkDriver(HEADRACE_FORMAT, PROGRAM),
            CONNECTOR_AT_KAFKA: SparkDriver(CONNECTOR_FORMAT, PROGRAM),
        }
        self.shop_topics = {name: ShopTopics() for name in self.drivers}

    def measured_clients(self, servers: Mapping[str, Broker]) -> list[System]:
        reason = spark_missing() or connector_missing() or reader_missing()
        if reason is not None:
            raise CannotRun(reason)
        return [
            MeasuredClient(name, server_named(servers, self._servers[name]), driver)
            for name, driver in self.drivers.items()
        ]


@dataclass(frozen=True)
class ShopLine:
    """A line that compares Headrace with Spark's connector on Kafka, both warm."""

    engines: ShopEngines = field(repr=False)
    against: tuple[str, ...] = (CONNECTOR_AT_KAFKA,)
    alone: bool = False
    warm_rounds: int = 1

    def measured_clients(self, servers: Mapping[str, Broker]) -> list[System]:
        return self.engines.measured_clients(servers)


@dataclass(frozen=True)
class PipelineRows(ShopLine):
    warm_rounds: int = 3  # about twenty seconds each: the JVM compiles for a minute
    name: str = "pipeline-rows"
    title: str = (
        "the shop's three queries together over filled topics, AvailableNow, exactly once against at least once"
    )
    figures: tuple[Figure, ...] = ROWS_FIGURES

    def measure(self, system: System, topic: str, options: Options) -> Measurement:
        """Measure rows per second, where a row is an event of the shop no matter how many queries read it."""
        assert isinstance(system, MeasuredClient)
        driver, server, events = self.engines.drivers[system.name], system.server, options.shop_events
        driver.start(options.work)
        self.engines.shop_topics[system.name].fill(server, events, options.work)
        with result_topics(server, f"-{topic}") as topics, _fresh_folder(options.work / "checkpoint") as checkpoint:
            job = ShopJob(TO_THE_END, f"{LOOPBACK}:{server.port}", str(checkpoint), f"-{topic}")
            spark_before, server_before = driver.cpu_seconds(), cpu_seconds(server.pid)
            result = ShopResult(**driver.request(self.name, asdict(job)))
            spark_s, server_s = driver.cpu_seconds() - spark_before, cpu_seconds(server.pid) - server_before
            row_counts = check_results(system.name, server, topics, events)
        figures = {"rows_per_s": events / result.seconds, "cpu_us_per_row": (spark_s + server_s) / events * 1e6}
        return Measurement(figures, {**asdict(result), **row_counts, "spark_cpu_s": spark_s, "server_cpu_s": server_s})


@dataclass(frozen=True)
class PipelineLatency(ShopLine):
    name: str = "pipeline-latency"
    title: str = "the shop's three queries at 1,000 events per second: from an order to its enriched row"
    figures: tuple[Figure, ...] = LATENCY_FIGURES

    def measure(self, system: System, topic: str, options: Options) -> Measurement:
        assert isinstance(system, MeasuredClient)
        driver, server = self.engines.drivers[system.name], system.server
        shop_topics = self.engines.shop_topics[system.name]
        driver.start(options.work)
        shop_topics.create_empty(server)
        with result_topics(server, f"-{topic}") as topics, _fresh_folder(options.work / "checkpoint") as checkpoint:
            job = ShopJob(START, f"{LOOPBACK}:{server.port}", str(checkpoint), f"-{topic}")
            driver.request(self.name, asdict(job))
            try:
                arrived = self._run_shop(server, topics["enriched_orders"], options)
                memory = server.rss_bytes()
            finally:
                stopped = driver.request(self.name, asdict(ShopJob(STOP)))
        counted = latencies(order_times(server.port), arrived, options.shop_warm_seconds * MS_PER_S)
        shop_topics.clear()
        figures = {"p50_ms": percentile(counted, 0.5), "p99_ms": percentile(counted, 0.99)}
        detail = {"orders": len(counted), "max_ms": max(counted), **stopped}
        return Measurement({**figures, "server_mb": memory / MEGABYTE}, detail)

    def _run_shop(self, server: Broker, topic: str, options: Options) -> dict[int, float]:
        """Generate events at the configured rate and return when the result of each order arrived."""
        events = int(options.shop_rate * options.shop_seconds)
        with (
            TopicReader(server.port, topic, partitions=PARTITIONS) as reader,
            Generator(server, options.work, events=events, rate=options.shop_rate) as generator,
        ):
            arrived = arrivals(reader, orders_among(events), options.shop_seconds + LATE_S_MAX)
            generator.finish(LATE_S_MAX)
        return arrived


@contextmanager
def _fresh_folder(path: Path) -> Iterator[Path]:
    shutil.rmtree(path, ignore_errors=True)
    try:
        yield path.absolute()
    finally:
        shutil.rmtree(path, ignore_errors=True)


def pipeline_lines() -> list[Line]:
    engines, runs = ShopEngines(), DemoRuns()
    return [PipelineRows(engines), PipelineLatency(engines), FirstResult(runs), DemoMemory(runs)]

"""The lines of the Spark chapter: the same jobs with format("headrace") and with Spark's own Kafka connector.

Both run on the same topics, each in a warm session.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec

from testkit.spark_connector import connector_missing

from bench.errors import BenchFailed, CannotRun
from bench.line import Figure, Line, Measurement, Options
from bench.load.data_sets import LARGE, LARGE_ZSTD, PARTITIONS, SMALL, SMALL_ZSTD, DataSet, TopicCache, total_end_offset
from bench.spark.driver import SparkDriver
from bench.spark.program import CONNECTOR_FORMAT, HEADRACE_FORMAT, Job, JobResult
from bench.systems.clients import CONNECTOR, MeasuredClient, server_named, server_suffix
from bench.systems.servers import HEADRACE, KAFKA, Broker, System
from headrace.testing.processes import LOOPBACK

STREAM_BATCHES = 10  # batches per topic for a stream: a million records of 100 B each
SINK_SHARE = 5  # a fifth of the records is written to another topic
START_S_GOAL = 10.0
CPU = Figure("cpu_us_per_row", "CPU of Spark's processes, µs/row", False, digits=2)


@dataclass(frozen=True)
class Kind:
    name: str  # name of the job
    title: str
    goal: float
    share: int = 1  # the job uses one in this many records

    @property
    def writes(self) -> bool:
        return self.share > 1


KINDS = (
    Kind("batch", "batch, all columns → noop", 2.0),
    Kind("pruned", "batch, sum(length(value)), columns=value", 3.0),
    Kind("available-now", "AvailableNow in 10 batches, all columns → noop", 2.0),
    Kind("stream", "a running stream, all columns → noop", 2.0),
    Kind("sink", "batch, topic → topic, exactly once against at least once", 1.2, SINK_SHARE),
    Kind("stream-sink", "stream, topic → topic, exactly once against at least once", 1.2, SINK_SHARE),
)


class Engines:
    """Both drivers, shared by all lines, and the topics they read."""

    def __init__(self) -> None:
        self.drivers = {HEADRACE: SparkDriver(HEADRACE_FORMAT), CONNECTOR: SparkDriver(CONNECTOR_FORMAT)}
        self.topic_cache = TopicCache()
        self.counted: set[tuple[str, int, str]] = set()  # topics whose records an engine has counted completely

    def measured_clients(self, server: Broker) -> list[System]:
        reason = spark_missing() or connector_missing()
        if reason is not None:
            raise CannotRun(reason)
        return [MeasuredClient(name, server, driver) for name, driver in self.drivers.items()]


def spark_missing() -> str | None:
    for package in ("pyspark", "pyarrow", "pandas", "psutil"):
        if find_spec(package) is None:
            return f"{package} is not installed"
    return None


@dataclass(frozen=True)
class SparkJob:
    name: str
    title: str
    kind: Kind
    data: DataSet
    server: str
    engines: Engines = field(repr=False)
    figures: tuple[Figure, ...]
    against: tuple[str, ...] = (CONNECTOR,)
    alone: bool = False
    warm_rounds: int = 1

    def measured_clients(self, servers: Mapping[str, Broker]) -> list[System]:
        return self.engines.measured_clients(server_named(servers, self.server))

    def measure(self, system: System, topic: str, options: Options) -> Measurement:
        assert isinstance(system, MeasuredClient)
        driver = self.engines.drivers[system.name]
        driver.start(options.work)
        job = self._job(system, topic, options)
        self._count(system, driver, job)
        if not self.kind.writes:
            return self._run(driver, job)
        system.create_topic(topic, PARTITIONS)
        try:
            measured = self._run(driver, job)
            stored = total_end_offset(system.server, topic)
        finally:
            system.delete_topic(topic)
        if stored < job.records:  # transaction markers have offsets too
            raise BenchFailed(f"{system.name} wrote {job.records} records, but the topic ends at {stored}")
        return measured

    def records(self, options: Options) -> int:
        return self.data.whole_batches(self._records_of_this_size(options) // self.kind.share)

    def batch_records(self, options: Options) -> int:
        return max(1, self._records_of_this_size(options) // STREAM_BATCHES)

    def _records_of_this_size(self, options: Options) -> int:
        """Return the number of records for this size: a record of 1 KB counts as ten of 100 bytes."""
        return options.records // (self.data.value_bytes // SMALL.value_bytes)

    def _job(self, client: MeasuredClient, target: str, options: Options) -> Job:
        records = self.records(options)
        source = self.engines.topic_cache.filled_topic(client.server, self.data, records)
        return Job(
            name=self.kind.name,
            bootstrap=f"{LOOPBACK}:{client.port}",
            topic=source,
            records=records,
            batch_records=self.batch_records(options),
            target=target if self.kind.writes else "",
            codec=self.data.codec.name.lower(),
        )

    def _count(self, client: MeasuredClient, driver: SparkDriver, job: Job) -> None:
        """Check once per engine and topic that it sees all records, which a noop sink cannot show."""
        key = (client.name, client.pid, job.topic)
        if key not in self.engines.counted:
            counting = Job("count", job.bootstrap, job.topic, job.records, job.batch_records)
            _check(client.name, driver.run(counting), job)
            self.engines.counted.add(key)

    def _run(self, driver: SparkDriver, job: Job) -> Measurement:
        before = driver.cpu_seconds()
        result = driver.run(job)
        cpu_s = driver.cpu_seconds() - before
        _check(self.name, result, job)
        figures = {"rows_per_s": result.rows / result.seconds, "cpu_us_per_row": cpu_s / result.all_rows * 1e6}
        return Measurement(figures, {**asdict(result), "cpu_s": cpu_s})


def _check(name: str, result: JobResult, job: Job) -> None:
    if result.all_rows != job.records:
        raise BenchFailed(f"{name} processed {result.all_rows} of the {job.records} rows in {job.topic}")


@dataclass(frozen=True)
class SparkStart:
    """Start of a session made by headrace.pipelines.session, in a separate process; it has no baseline."""

    name: str = "spark-start"
    title: str = "Spark driver, process start to the first count, warm"
    figures: tuple[Figure, ...] = (Figure("start_s", "s", False, goal_absolute=START_S_GOAL, digits=1),)
    against: tuple[str, ...] = ()
    alone: bool = True
    warm_rounds: int = 1  # creates the class archive if there is none

    def measured_clients(self, servers: Mapping[str, Broker]) -> list[System]:
        reason = spark_missing()
        if reason is not None:
            raise CannotRun(reason)
        return [MeasuredClient(HEADRACE, server_named(servers, HEADRACE))]

    def measure(self, system: System, topic: str, options: Options) -> Measurement:
        driver = SparkDriver(HEADRACE_FORMAT)
        try:
            driver.start(options.work)
            driver.end()
            return Measurement({"start_s": driver.start_s})
        finally:
            driver.close()


def spark_lines() -> list[Line]:
    engines = Engines()
    lines: list[Line] = [SparkStart()]
    for server in (HEADRACE, KAFKA):
        name_suffix, title_suffix = server_suffix(server)
        lines += [
            SparkJob(
                f"spark-{kind.name}-{data.name}{name_suffix}",
                f"{kind.title}, {data.title}{title_suffix}",
                kind,
                data,
                server,
                engines,
                (Figure("rows_per_s", "rows/s", True, goal=kind.goal), CPU),
                # A session is warm for a job once it has run it with any data; each new data set is warmed up once.
                warm_rounds=1 if data is SMALL or kind is KINDS[0] else 0,
            )
            for data in (SMALL, SMALL_ZSTD, LARGE, LARGE_ZSTD)
            for kind in KINDS
        ]
    return lines

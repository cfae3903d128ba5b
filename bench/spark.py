"""format("headrace") against Spark's own Kafka connector: the same jobs on the same topics, each in a warm session."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec

from testkit.spark_connector import connector_missing

from bench.contestants import HEADRACE, KAFKA, Broker, Contestant
from bench.data_sets import LARGE, LARGE_ZSTD, PARTITIONS, SMALL, SMALL_ZSTD, DataSet, Shelf, end_of
from bench.line import Figure, Line, Measured, Options
from bench.measured_clients import CONNECTOR, MeasuredClient, server_named, server_suffix
from bench.spark_driver import SparkDriver
from bench.spark_program import CONNECTOR_FORMAT, HEADRACE_FORMAT, Job, JobDone
from bench.wire import BenchFailed, CannotRun
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
        self.shelf = Shelf()
        self.counted: set[tuple[str, int, str]] = set()  # topics whose records an engine has counted completely

    def measured_clients(self, server: Broker) -> list[Contestant]:
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

    def measured_clients(self, servers: Mapping[str, Broker]) -> list[Contestant]:
        return self.engines.measured_clients(server_named(servers, self.server))

    def measure(self, contestant: Contestant, topic: str, options: Options) -> Measured:
        assert isinstance(contestant, MeasuredClient)
        driver = self.engines.drivers[contestant.name]
        driver.start(options.work)
        job = self._job(contestant, topic, options)
        self._count(contestant, driver, job)
        if not self.kind.writes:
            return self._run(driver, job)
        contestant.open_topic(topic, PARTITIONS)
        try:
            measured = self._run(driver, job)
            found = end_of(contestant.server, topic)
        finally:
            contestant.drop_topic(topic)
        if found < job.records:  # transaction markers have offsets too
            raise BenchFailed(f"{contestant.name} wrote {job.records} records, of which {found} are there")
        return measured

    def records(self, options: Options) -> int:
        return self.data.whole(self._of_this_size(options) // self.kind.share)

    def batch_records(self, options: Options) -> int:
        return max(1, self._of_this_size(options) // STREAM_BATCHES)

    def _of_this_size(self, options: Options) -> int:
        """Return the number of records for this size: 1 KB counts as ten times 100 bytes."""
        return options.records // (self.data.value_bytes // SMALL.value_bytes)

    def _job(self, measured_client: MeasuredClient, target: str, options: Options) -> Job:
        records = self.records(options)
        source = self.engines.shelf.topic(measured_client.server, self.data, records)
        return Job(
            name=self.kind.name,
            bootstrap=f"{LOOPBACK}:{measured_client.port}",
            topic=source,
            records=records,
            batch_records=self.batch_records(options),
            target=target if self.kind.writes else "",
            codec=self.data.codec.name.lower(),
        )

    def _count(self, measured_client: MeasuredClient, driver: SparkDriver, job: Job) -> None:
        """Check once per engine and topic that it sees all records, which a noop sink cannot show."""
        key = (measured_client.name, measured_client.pid, job.topic)
        if key not in self.engines.counted:
            counting = Job("count", job.bootstrap, job.topic, job.records, job.batch_records)
            _check(measured_client.name, driver.run(counting), job)
            self.engines.counted.add(key)

    def _run(self, driver: SparkDriver, job: Job) -> Measured:
        before = driver.cpu_seconds()
        done = driver.run(job)
        cpu_s = driver.cpu_seconds() - before
        _check(self.name, done, job)
        figures = {"rows_per_s": done.rows / done.seconds, "cpu_us_per_row": cpu_s / done.all_rows * 1e6}
        return Measured(figures, {**asdict(done), "cpu_s": cpu_s})


def _check(who: str, done: JobDone, job: Job) -> None:
    if done.all_rows != job.records:
        raise BenchFailed(f"{who}: {done.all_rows} rows of {job.records} in {job.topic}")


@dataclass(frozen=True)
class SparkStart:
    """Start of the session that our helper makes, in a separate process; there is no opponent."""

    name: str = "spark-start"
    title: str = "Spark driver, process start to the first count, warm"
    figures: tuple[Figure, ...] = (Figure("start_s", "s", False, goal_absolute=START_S_GOAL, digits=1),)
    against: tuple[str, ...] = ()
    alone: bool = True
    warm_rounds: int = 1  # creates the class archive if there is none

    def measured_clients(self, servers: Mapping[str, Broker]) -> list[Contestant]:
        reason = spark_missing()
        if reason is not None:
            raise CannotRun(reason)
        return [MeasuredClient(HEADRACE, server_named(servers, HEADRACE))]

    def measure(self, contestant: Contestant, topic: str, options: Options) -> Measured:
        driver = SparkDriver(HEADRACE_FORMAT)
        try:
            driver.start(options.work)
            driver.end()
            return Measured({"start_s": driver.start_s})
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
                # A session is warm for a job once it has run it, whatever the data; each new data set is warmed up
                # once.
                warm_rounds=1 if data is SMALL or kind is KINDS[0] else 0,
            )
            for data in (SMALL, SMALL_ZSTD, LARGE, LARGE_ZSTD)
            for kind in KINDS
        ]
    return lines

"""The program of the check spark-same-rows: every job with both connectors, on Headrace and on Kafka.

Spark's own connector on Kafka is the reference for the other three.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from testkit.spark_connector import connector_jars

from headrace.pipelines.session import make_session
from tools.prove.spark import topics
from tools.prove.spark.programs import JAVA_OPTIONS, report_event
from tools.prove.spark.same_jobs import BATCHES, STREAMS, TASKS_MIN, Job

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SEEN_S_MAX = 180
TRIGGER = "200 milliseconds"
POLL_S = 0.1
STEPS = (range(200), range(200, 300))
ROWS_SHOWN = 3
SLOW_START = "Python worker failed to connect back"
STREAM_TOPIC, NEW_TOPIC = "stream-a", "stream-b"
SINK_ROWS = 300
KAFKA, HEADRACE = "kafka", "headrace"

Row = tuple[Any, ...]


@dataclass(frozen=True)
class Way:
    """A connector and a server."""

    format: str
    server: str
    bootstrap: str

    @property
    def name(self) -> str:
        return f"{self.format}-on-{self.server}"


def plain(value: Any) -> Any:
    """Return a comparable value: bytes for byte arrays, tuples for rows."""
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, list | tuple):
        return tuple(plain(one) for one in value)
    return value


def rows_of(frame: DataFrame) -> list[Row]:
    return sorted((plain(tuple(row)) for row in frame.collect()), key=repr)


def compare(job: str, found: dict[Way, list[Row]], reference: Way) -> None:
    wanted = found[reference]
    for way, rows in found.items():
        if rows == wanted:
            continue
        lost, new = [row for row in wanted if row not in rows], [row for row in rows if row not in wanted]
        raise AssertionError(
            f"{job}: {way.name} has {len(rows)} rows, {reference.name} {len(wanted)};"
            f" {lost[:ROWS_SHOWN]} are missing and {new[:ROWS_SHOWN]} are too much"
        )


class SameRows:
    """The jobs, each run in four ways: with both connectors on both servers."""

    def __init__(self, spark: SparkSession, servers: dict[str, str], folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        self._servers = servers
        self._ways = [Way(form, server, where) for server, where in servers.items() for form in (KAFKA, HEADRACE)]
        self._reference = next(way for way in self._ways if (way.format, way.server) == (KAFKA, "kafka"))
        self._base_ms = int(time.time() * 1000) - 3_600_000
        self.jobs = self.rows = 0

    def run(self) -> None:
        """Run all jobs. Raise AssertionError for the first whose rows differ."""
        producers = [topics.fill(bootstrap, self._base_ms) for bootstrap in self._servers.values()]
        for job in BATCHES:
            self._batch(job)
        self._append_time()
        self._two_steps()
        self._running()
        self._sinks()
        for producer in producers:
            producer.abort_transaction(topics.WAIT_S_MAX)

    # --- batch

    def _load(self, reader: Any, way: Way, options: dict[str, str]) -> DataFrame:
        given = {"kafka.bootstrap.servers": way.bootstrap, **options}
        loaded: DataFrame = reader.format(way.format).options(**given).load()
        return loaded

    def _batch(self, job: Job) -> None:
        found = {}
        for way in self._ways:
            frame = self._load(self._spark.read, way, job.options_at(self._base_ms))
            if "minPartitions" in job.options:
                tasks = frame.rdd.getNumPartitions()
                assert tasks >= TASKS_MIN, f"{job.name}: {way.name} has only {tasks} tasks"
            found[way] = rows_of(frame)
        self._check_equal(job.name, found)

    def _append_time(self) -> None:
        """Compare rows per server only, because the broker sets their timestamps."""
        for server in self._servers:
            ways = [way for way in self._ways if way.server == server]
            found = {way: rows_of(self._load(self._spark.read, way, {"subscribe": topics.APPENDED})) for way in ways}
            compare(f"append time on {server}", found, ways[0])
            self._count("append time", found)

    # --- streams

    def _start(self, way: Way, job: str, options: dict[str, str], **trigger: Any) -> Any:
        folder = self._folder / job / way.name
        frame = self._load(self._spark.readStream, way, {"includeHeaders": "true", **options})
        return (
            frame.writeStream.format("parquet")
            .option("checkpointLocation", str(folder / "checkpoint"))
            .trigger(**trigger)
            .start(str(folder / "rows"))
        )

    def _run_to_the_end(self, way: Way, job: str, options: dict[str, str]) -> Any:
        from pyspark.errors import StreamingQueryException

        for is_last in (False, False, True):
            query = self._start(way, job, options, availableNow=True)
            try:
                assert query.awaitTermination(SEEN_S_MAX), f"{job}: {way.name} does not end within {SEEN_S_MAX} s"
                return query
            except StreamingQueryException as error:
                # Spark gives a Python process 10 s to start, which is not always enough on a busy machine.
                if is_last or SLOW_START not in str(error):
                    raise
                report_event("retry", job=job, way=way.name)
        raise AssertionError

    def _written(self, way: Way, job: str, files: str = "") -> list[Row]:
        return rows_of(self._spark.read.parquet(str(self._folder / job / way.name / "rows" / files)))

    def _grow(self, topic: str, step: int) -> None:
        for bootstrap in self._servers.values():
            new = topics.records(topic, STEPS[step], self._base_ms)
            topics.write(bootstrap, topic, new, 2, **{"compression.type": "zstd" if step else "none"})

    def _two_steps(self) -> None:
        """Run AvailableNow, add records and a new topic, then run AvailableNow from the checkpoint."""
        for bootstrap in self._servers.values():
            topics.create(bootstrap, {STREAM_TOPIC: 2})
        self._grow(STREAM_TOPIC, 0)
        for step in range(2):
            if step:
                for bootstrap in self._servers.values():
                    topics.create(bootstrap, {NEW_TOPIC: 2})
                self._grow(STREAM_TOPIC, 1)
                self._grow(NEW_TOPIC, 0)
            for job in STREAMS:
                found = {}
                for way in self._ways:
                    self._check_limit(job, self._run_to_the_end(way, job.name, job.options_at(self._base_ms)))
                    found[way] = self._written(way, job.name)
                self._check_equal(f"{job.name}, step {step + 1}", found)
        self._change_of_format()

    def _check_limit(self, job: Job, query: Any) -> None:
        most = int(job.options.get("maxOffsetsPerTrigger", sys.maxsize))
        sizes = [one.numInputRows for one in query.recentProgress]
        assert all(size <= most for size in sizes), f"{job.name}: batches of {sizes} rows"

    def _change_of_format(self) -> None:
        """Switch a job of Spark's connector to Headrace's, resume from its checkpoint and compare the new rows."""
        job, changed = STREAMS[0], "changed"
        for way in self._ways:
            before = Way(KAFKA, way.server, way.bootstrap)
            checkpoint = self._folder / job.name / before.name / "checkpoint"
            shutil.copytree(checkpoint, self._folder / changed / way.name / "checkpoint")
        self._grow(STREAM_TOPIC, 1)
        found = {}
        for way in self._ways:
            self._run_to_the_end(way, changed, job.options_at(self._base_ms))
            # Reads the files directly: Spark's own list of files would have to go back to the first batch.
            found[way] = self._written(way, changed, "*.parquet")
        self._check_equal("a checkpoint of Spark's connector, resumed with Headrace's", found)

    def _running(self) -> None:
        """Stop and restart a stream that waits for records."""
        topic, job = "running", "a running stream, stopped and started again"
        for bootstrap in self._servers.values():
            topics.create(bootstrap, {topic: 2})
        options = {"subscribe": topic, "startingOffsets": "earliest"}
        found: dict[Way, list[Row]] = {}
        for step, numbers in enumerate(STEPS):
            queries = {way: self._start(way, job, options, processingTime=TRIGGER) for way in self._ways}
            self._grow(topic, step)
            for way, query in queries.items():
                found[way] = self._wait_for_rows(way, job, query, len(numbers))
                query.stop()
        self._check_equal(job, found)

    def _wait_for_rows(self, way: Way, job: str, query: Any, count: int) -> list[Row]:
        deadline = time.monotonic() + SEEN_S_MAX
        while sum(one.numInputRows for one in query.recentProgress) < count:
            assert query.exception() is None, f"{way.name}: {query.exception()}"
            assert time.monotonic() < deadline, f"{job}: {way.name} has not read {count} rows within {SEEN_S_MAX} s"
            time.sleep(POLL_S)
        return self._written(way, job)

    # --- sinks

    def _sinks(self) -> None:
        """Read what each connector wrote with the other one; rows with keys must be in the same partitions."""
        for name, write in (("a batch written", self._write_batch), ("a stream written", self._write_stream)):
            found = {}
            for way in self._ways:
                topic = f"{name.replace(' ', '-')}-by-{way.format}"
                topics.create(way.bootstrap, {topic: 3})
                write(way, topic)
                reader = Way(KAFKA if way.format == HEADRACE else HEADRACE, way.server, way.bootstrap)
                options = {"subscribe": topic, "includeHeaders": "true", "kafka.isolation.level": "read_committed"}
                frame = self._load(self._spark.read, reader, options)
                found[way] = rows_of(frame.select("key", "value", "partition", "headers"))
            self._check_equal(name, found)

    def _sample_rows(self, frame: DataFrame) -> DataFrame:
        return frame.selectExpr(
            "cast(if(number % 5 = 0, null, concat('key ', number % 50)) as binary) key",
            "cast(if(number % 7 = 0, null, concat('value ', number)) as binary) value",
            "cast(if(number % 5 = 0, number % 3, null) as int) partition",
            "if(number % 4 = 0, array(named_struct('key', 'h', 'value', cast(cast(number as string) as binary)),"
            " named_struct('key', 'h', 'value', cast(null as binary))), null) headers",
        )

    def _write_batch(self, way: Way, topic: str) -> None:
        frame = self._sample_rows(self._spark.range(0, SINK_ROWS, numPartitions=3).withColumnRenamed("id", "number"))
        options = {"kafka.bootstrap.servers": way.bootstrap, "topic": topic}
        frame.write.format(way.format).options(**options, includeHeaders="true").mode("append").save()

    def _write_stream(self, way: Way, topic: str) -> None:
        options = {"subscribe": topics.PLAIN, "startingOffsets": "earliest", "maxOffsetsPerTrigger": "250"}
        frame = self._load(self._spark.readStream, way, options)
        query = (
            self._sample_rows(frame.selectExpr("offset number"))
            .writeStream.format(way.format)
            .option("kafka.bootstrap.servers", way.bootstrap)
            .option("topic", topic)
            .option("checkpointLocation", str(self._folder / topic / way.name))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(SEEN_S_MAX), f"{topic}: {way.name} does not end within {SEEN_S_MAX} s"

    # --- results

    def _check_equal(self, job: str, found: dict[Way, list[Row]]) -> None:
        assert found[self._reference], f"{job}: the reference has no rows"
        compare(job, found, self._reference)
        self._count(job, found)

    def _count(self, job: str, found: dict[Way, list[Row]]) -> None:
        rows = sum(map(len, found.values()))
        self.jobs += 1
        self.rows += rows
        report_event("job", job=job, rows=rows)


def main(headrace: str, kafka: str) -> None:
    conf = {
        "spark.jars": ",".join(map(str, connector_jars())),
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
        "spark.sql.session.timeZone": "UTC",
    }
    spark = make_session("same rows", master="local[2]", conf=conf)
    spark.sparkContext.setLogLevel("ERROR")
    with tempfile.TemporaryDirectory(prefix="same-rows-") as folder:
        jobs = SameRows(spark, {"headrace": headrace, "kafka": kafka}, Path(folder))
        jobs.run()
    report_event("done", jobs=jobs.jobs, rows=jobs.rows)


if __name__ == "__main__":
    main(*sys.argv[1:])

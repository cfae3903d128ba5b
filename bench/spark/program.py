"""A Spark driver with one warm session: `python -m bench.spark.program FORMAT`.

It reads jobs as lines of JSON and responds to each with one. Times are those of the action inside the driver, including
planning, as for a user.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import IO, TYPE_CHECKING, Any

from testkit.spark_connector import connector_jars

from headrace.pipelines.session import make_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

MASTER = "local[2]"
HEADRACE_FORMAT, CONNECTOR_FORMAT = "headrace", "kafka"
STREAM_S_MAX = 600
POLL_S = 0.05


@dataclass(frozen=True)
class Job:
    name: str
    bootstrap: str
    topic: str
    records: int  # records in the topic
    batch_records: int  # maximum records per batch of a stream
    target: str = ""  # the topic to write to
    codec: str = "none"  # compression of the written records


@dataclass(frozen=True)
class JobResult:
    rows: int  # rows within the measured time
    seconds: float
    all_rows: int


class Engine:
    def __init__(self, spark: SparkSession, name: str) -> None:
        self._spark = spark
        self._format = name

    def run(self, job: Job) -> JobResult:
        return JOBS[job.name](self, job)

    # --- batch

    def count(self, job: Job) -> JobResult:
        with _timed() as seconds:
            rows = self._rows(job, "offset").count()
        return JobResult(rows, seconds(), rows)

    def batch(self, job: Job) -> JobResult:
        with _timed() as seconds:
            self._rows(job).write.format("noop").mode("overwrite").save()
        return JobResult(job.records, seconds(), job.records)

    def pruned(self, job: Job) -> JobResult:
        """Compute the rows from the sum: all values have the same length."""
        with _timed() as seconds:
            ((total, longest),) = (
                self._rows(job, "value").selectExpr("sum(length(value))", "max(length(value))").collect()
            )
        return JobResult(total // longest, seconds(), total // longest)

    def sink(self, job: Job) -> JobResult:
        with _timed() as seconds:
            rows = self._rows(job, "key", "value").select("key", "value")
            rows.write.format(self._format).options(**self._target(job)).mode("append").save()
        return JobResult(job.records, seconds(), job.records)

    # --- streams

    def available_now(self, job: Job) -> JobResult:
        with tempfile.TemporaryDirectory(prefix="bench-checkpoint-") as checkpoint, _timed() as seconds:
            query = self._noop_stream(job, checkpoint).trigger(availableNow=True).start()
            rows = await_rows(query)
            return JobResult(rows, seconds(), rows)

    def stream(self, job: Job) -> JobResult:
        """Measure from the end of the first batch to the end of the last one, without the start."""
        with tempfile.TemporaryDirectory(prefix="bench-checkpoint-") as checkpoint:
            query = self._noop_stream(job, checkpoint).start()
            try:
                batches = _await_records(query, job.records)
            finally:
                query.stop()
        ends = [_ended_at(one) for one in batches]
        rows = [one["numInputRows"] for one in batches]
        return JobResult(sum(rows[1:]), ends[-1] - ends[0], sum(rows))

    def stream_sink(self, job: Job) -> JobResult:
        with tempfile.TemporaryDirectory(prefix="bench-checkpoint-") as checkpoint, _timed() as seconds:
            rows = self._stream(job, "key", "value").select("key", "value")
            writer = rows.writeStream.format(self._format).options(**self._target(job))
            query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
            written = await_rows(query)
            return JobResult(written, seconds(), written)

    # --- building blocks

    def _source(self, job: Job, columns: Sequence[str]) -> dict[str, str]:
        options = {
            "kafka.bootstrap.servers": job.bootstrap,
            "subscribe": job.topic,
            "startingOffsets": "earliest",
        }
        if columns and self._format == HEADRACE_FORMAT:
            options["columns"] = ",".join(columns)
        return options

    def _rows(self, job: Job, *columns: str) -> DataFrame:
        return self._spark.read.format(self._format).options(**self._source(job, columns)).load()

    def _stream(self, job: Job, *columns: str) -> DataFrame:
        options = {**self._source(job, columns), "maxOffsetsPerTrigger": str(job.batch_records)}
        return self._spark.readStream.format(self._format).options(**options).load()

    def _noop_stream(self, job: Job, checkpoint: str) -> Any:
        return self._stream(job).writeStream.format("noop").option("checkpointLocation", checkpoint)

    def _target(self, job: Job) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": job.bootstrap,
            "topic": job.target,
            "kafka.compression.type": job.codec,
        }


JOBS: dict[str, Callable[[Engine, Job], JobResult]] = {
    "count": Engine.count,
    "batch": Engine.batch,
    "pruned": Engine.pruned,
    "sink": Engine.sink,
    "available-now": Engine.available_now,
    "stream": Engine.stream,
    "stream-sink": Engine.stream_sink,
}


@contextmanager
def _timed() -> Iterator[Callable[[], float]]:
    began = time.perf_counter()
    yield lambda: time.perf_counter() - began


def await_rows(query: StreamingQuery) -> int:
    """Wait until the query ends and return the number of rows it read. Its errors propagate."""
    if not query.awaitTermination(STREAM_S_MAX):
        query.stop()
        raise TimeoutError(f"the stream did not end within {STREAM_S_MAX} s")
    return sum(one["numInputRows"] for one in query.recentProgress)


def _await_records(query: StreamingQuery, records: int) -> list[dict[str, Any]]:
    """Wait until the query has read this many records and return its non-empty batches."""
    deadline = time.monotonic() + STREAM_S_MAX
    while time.monotonic() < deadline and query.isActive:
        batches = {one["batchId"]: one for one in query.recentProgress if one["numInputRows"]}
        if sum(one["numInputRows"] for one in batches.values()) >= records:
            return list(batches.values())
        time.sleep(POLL_S)
    raise TimeoutError(f"the stream did not read {records} records within {STREAM_S_MAX} s: {query.exception()}")


def _ended_at(progress: dict[str, Any]) -> float:
    began = datetime.fromisoformat(progress["timestamp"].replace("Z", "+00:00")).timestamp()
    return float(began + progress["durationMs"]["triggerExecution"] / 1000)


def session(name: str, more: Mapping[str, str] | None = None) -> SparkSession:
    """Return a session made as users make it, with the connector's jars if it needs them."""
    conf = {"spark.jars": ",".join(map(str, connector_jars()))} if name == CONNECTOR_FORMAT else {}
    spark = make_session(f"bench-{name}", master=MASTER, conf={**conf, **(more or {})})
    spark.sparkContext.setLogLevel("ERROR")
    return spark


Handler = Callable[[Mapping[str, Any]], Mapping[str, object]]  # from a request to its response, both as JSON objects


def make_job_handler(spark: SparkSession, name: str) -> Handler:
    engine = Engine(spark, name)
    return lambda request: asdict(engine.run(Job(**request)))


def serve(
    name: str,
    make_handler: Callable[[SparkSession, str], Handler],
    requests: IO[str],
    responses: IO[str],
    conf: Mapping[str, str],
) -> None:
    def respond(response: Mapping[str, object]) -> None:
        responses.write(json.dumps(response) + "\n")
        responses.flush()

    spark = session(name, conf)
    respond({"count": spark.range(10).count()})  # the first result marks the end of the start
    handle = make_handler(spark, name)
    for line in requests:
        try:
            respond(handle(json.loads(line)))
        except Exception as error:
            respond({"error": f"{type(error).__name__}: {error}"[:2000]})


def main(make_handler: Callable[[SparkSession, str], Handler], conf: Mapping[str, str] | None = None) -> None:
    """Serve requests, with responses on the original standard output; anything else printed there goes to the log."""
    with os.fdopen(os.dup(1), "w") as responses:
        os.dup2(2, 1)
        serve(sys.argv[1], make_handler, sys.stdin, responses, conf or {})


if __name__ == "__main__":
    main(make_job_handler)

"""The demo's pipeline in a warm Spark driver: `python -m bench.pipelines.program FORMAT`.

With `headrace` the product builds and starts it. With `kafka` the sources and sinks are hand-written around the same
SQL, as users of Spark's own connector do it, with the same schemas, watermarks, batch limits, state store and trigger.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench.spark.program import CONNECTOR_FORMAT, HEADRACE_FORMAT, Handler, await_rows, main

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

    from headrace.pipelines.definitions import Pipeline, Sink, Source

TO_THE_END, START, STOP = "to the end", "start", "stop"
AVAILABLE_NOW = "available-now"
BOOTSTRAP = "kafka.bootstrap.servers"


@dataclass(frozen=True)
class ShopJob:
    operation: str  # TO_THE_END, START or STOP
    bootstrap: str = ""
    checkpoint: str = ""  # a folder that does not exist yet
    suffix: str = ""  # suffix of the result topics


@dataclass(frozen=True)
class ShopResult:
    seconds: float  # seconds from loading the definition to the end of the last query
    rows_read: int  # rows read by all queries; the table that orders are joined with is read for each batch


class ShopQueries:
    """The demo's queries in one session, with one of the two formats."""

    def __init__(self, spark: SparkSession, data_format: str) -> None:
        self._spark = spark
        self._start_queries = {HEADRACE_FORMAT: start_with_headrace, CONNECTOR_FORMAT: start_with_connector}[
            data_format
        ]
        self._running: list[StreamingQuery] = []

    def run_to_the_end(self, job: ShopJob) -> Mapping[str, object]:
        """Run all queries at once up to the current end of their topics."""
        began = time.perf_counter()
        self._start(job, {"trigger": AVAILABLE_NOW})
        try:
            rows = sum(await_rows(query) for query in self._running)
            return asdict(ShopResult(time.perf_counter() - began, rows))
        finally:
            self._stop_all()

    def start(self, job: ShopJob) -> Mapping[str, object]:
        """Start the queries with the definition's own trigger; they run until stopped."""
        self._start(job, {})
        return {"queries": len(self._running)}

    def stop(self, job: ShopJob) -> Mapping[str, object]:
        """Stop the queries. Raise RuntimeError with the reason if one had already ended."""
        ended = [query for query in self._running if not query.isActive]
        batches = {str(query.name): int(query.lastProgress["batchId"]) for query in self._running if query.lastProgress}
        self._stop_all()
        if ended:
            raise RuntimeError("; ".join(f"{query.name} had already ended: {query.exception()}" for query in ended))
        return {"batches": batches}

    def _start(self, job: ShopJob, overrides: Mapping[str, str]) -> None:
        self._stop_all()
        pipeline = shop_pipeline(job, overrides)
        try:
            self._start_queries(pipeline, self._spark, self._running.append)
        except BaseException:
            self._stop_all()
            raise

    def _stop_all(self) -> None:
        while self._running:
            self._running.pop().stop()


def shop_pipeline(job: ShopJob, overrides: Mapping[str, str]) -> Pipeline:
    """Return the demo's definition with result topics specific to this job."""
    from headrace.pipelines.definitions import load

    file = Path(str(files("headrace.demo") / "pipeline" / "shop.yaml"))
    (pipeline,) = load(file, {BOOTSTRAP: job.bootstrap, "checkpoint": job.checkpoint, **overrides})
    sinks = {name: replace(sink, target=sink.target + job.suffix) for name, sink in pipeline.sinks.items()}
    return replace(pipeline, sinks=sinks)


OnStarted = Callable[["StreamingQuery"], None]


def start_with_headrace(pipeline: Pipeline, spark: SparkSession, on_started: OnStarted) -> None:
    from headrace.pipelines.definitions import build

    for one in build(pipeline, spark):
        query = one.start()
        assert query is not None, "all of the demo's queries are streams"
        on_started(query)


# --- hand-written, with Spark's own connector


def start_with_connector(pipeline: Pipeline, spark: SparkSession, on_started: OnStarted) -> None:
    from headrace.pipelines.definitions.frames import settings_of

    with settings_of(pipeline, spark):
        for source in pipeline.sources.values():
            connector_rows(pipeline, source, spark).createOrReplaceTempView(source.name)
        for sink in pipeline.sinks.values():
            on_started(connector_query(pipeline, sink, spark.sql(pipeline.steps[sink.source].sql)))


def connector_rows(pipeline: Pipeline, source: Source, spark: SparkSession) -> DataFrame:
    from pyspark.sql.functions import col, from_json

    reader: Any = spark.readStream if source.is_stream else spark.read
    options = {BOOTSTRAP: pipeline.settings[BOOTSTRAP], "subscribe": source.target, **source.options}
    assert source.schema is not None, "all of the demo's sources have a schema"
    records = reader.format(CONNECTOR_FORMAT).options(**options).load()
    rows = records.select(from_json(col("value").cast("string"), source.schema).alias("event")).select("event.*")
    if source.watermark is None:
        return rows  # type: ignore[no-any-return]
    return rows.withWatermark(source.watermark.column, source.watermark.delay)  # type: ignore[no-any-return]


def connector_query(pipeline: Pipeline, sink: Sink, rows: DataFrame) -> StreamingQuery:
    from pyspark.sql.functions import expr, struct, to_json

    from headrace.pipelines.definitions import TriggerKind

    assert sink.key is not None and sink.value == "json", "all of the demo's sinks have a key and write JSON"
    records = rows.select(expr(sink.key).alias("key"), to_json(struct("*")).alias("value"))
    options = {
        BOOTSTRAP: pipeline.settings[BOOTSTRAP],
        "topic": sink.target,
        "checkpointLocation": pipeline.checkpoint_of(sink),
    }
    writer = records.writeStream.outputMode(sink.mode).queryName(pipeline.query_of(sink))
    writer = writer.format(CONNECTOR_FORMAT).options(**options)
    trigger = pipeline.trigger_of(sink)
    if trigger.kind is TriggerKind.AVAILABLE_NOW:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=trigger.interval).start()


def make_shop_handler(spark: SparkSession, data_format: str) -> Handler:
    queries = ShopQueries(spark, data_format)
    operations = {TO_THE_END: queries.run_to_the_end, START: queries.start, STOP: queries.stop}

    def handle(request: Mapping[str, Any]) -> Mapping[str, object]:
        job = ShopJob(**request)
        return operations[job.operation](job)

    return handle


def session_conf(data_format: str) -> Mapping[str, str]:
    """Return the settings that the product's driver uses for checkpoints in folders, or none for Spark's connector."""
    from headrace.pipelines.runner.checkpoint_files import local_checkpoint_conf

    return local_checkpoint_conf() if data_format == HEADRACE_FORMAT else {}


if __name__ == "__main__":
    main(make_shop_handler, session_conf(sys.argv[1]))

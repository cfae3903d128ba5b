"""Builds the queries of a pipeline for a SparkSession, one per sink, ready to be started and restarted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.pipelines.definitions.definition import DefinitionError, Pipeline, Place, Problem, Sink
from headrace.pipelines.definitions.frames import SinkFrames, make_active, run_time_conf, settings_of
from headrace.pipelines.definitions.writing import start_query, write_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(frozen=True)
class Built:
    """The query of a sink, analysed by Spark and ready to start."""

    pipeline_name: str
    sink_name: str
    query_name: str  # `pipeline_name.sink_name`
    checkpoint: str  # path; empty for a batch
    is_batch: bool  # whether no source is a stream
    where: Place  # location of the sink's definition
    # Returns the started query, or None for a batch once all is written. Each call after the first rereads tables.
    start: Callable[[], StreamingQuery | None]


def build(pipeline: Pipeline, spark: SparkSession) -> list[Built]:
    """Build all sinks; raise DefinitionError with the problems of every sink, not only of the first."""
    frames = SinkFrames(pipeline, spark)
    made: list[Built] = []
    problems: list[Problem] = []
    with settings_of(pipeline, spark):
        for sink in pipeline.sinks.values():
            try:
                made.append(_built(pipeline, sink, spark, frames[sink]))
            except DefinitionError as error:
                problems += error.problems
    if problems:
        raise DefinitionError(problems)
    return made


def _built(pipeline: Pipeline, sink: Sink, spark: SparkSession, frame: DataFrame) -> Built:
    is_batch = not frame.isStreaming
    start = _Batch(pipeline, sink, spark) if is_batch else _Stream(pipeline, sink, spark, frame)
    checkpoint = "" if is_batch else pipeline.checkpoint_of(sink)
    return Built(pipeline.name, sink.name, pipeline.query_of(sink), checkpoint, is_batch, sink.where, start)


class _Stream:
    def __init__(self, pipeline: Pipeline, sink: Sink, spark: SparkSession, frame: DataFrame) -> None:
        self._pipeline, self._sink, self._spark = pipeline, sink, spark
        self._first: DataFrame | None = frame

    def __call__(self) -> StreamingQuery:
        with settings_of(self._pipeline, self._spark):
            frame, self._first = self._first, None
            if frame is None:
                frame = SinkFrames(self._pipeline, self._spark)[self._sink]
            return start_query(frame, self._pipeline, self._sink)


class _Batch:
    """Runs in a separate session: it may take long, and the shared session's settings cannot be changed for that long."""

    def __init__(self, pipeline: Pipeline, sink: Sink, spark: SparkSession) -> None:
        self._pipeline, self._sink, self._spark = pipeline, sink, spark

    def __call__(self) -> None:
        spark = self._spark.newSession()
        make_active(spark)
        for name, text in run_time_conf(self._pipeline, spark).items():
            spark.conf.set(name, text)
        write_once(SinkFrames(self._pipeline, spark)[self._sink], self._pipeline, self._sink)

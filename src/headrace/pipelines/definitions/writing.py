"""Writes DataFrames to sinks: converts them to the records of a topic, and starts the query."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from headrace.pipelines.definitions.definition import DefinitionError, Pipeline, Problem, Sink, SinkKind, TriggerKind
from headrace.pipelines.definitions.frames import FORMAT, errors_located_at
from headrace.pipelines.definitions.topic_options import sink_options
from headrace.pipelines.sink.options import parse_sink_options

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

RECORD_COLUMNS = ("key", "value", "topic", "partition", "headers", "timestamp")
QUERY_ID = "sql.streaming.queryId"  # local property of the thread that runs a batch
_TEXT = ("string", "binary")


def start_query(frame: DataFrame, pipeline: Pipeline, sink: Sink) -> StreamingQuery:
    with errors_located_at(sink.where, f"sink {sink.name}"):
        trigger = pipeline.trigger_of(sink)
        writer = _shaped(frame, sink).writeStream.outputMode(sink.mode).queryName(pipeline.query_of(sink))
        writer = writer.option("checkpointLocation", pipeline.checkpoint_of(sink))
        if sink.partition_by:
            writer = writer.partitionBy(*sink.partition_by)
        if sink.kind is SinkKind.TOPIC and sink.mode == "update":
            writer = writer.foreachBatch(_write_updates(sink_options(pipeline, sink)))
        else:
            writer = writer.format(_format(sink)).options(**_options(pipeline, sink))
        if trigger.kind is TriggerKind.AVAILABLE_NOW:
            return writer.trigger(availableNow=True).start()
        return writer.trigger(processingTime=trigger.interval).start()


def _write_updates(options: dict[str, str]) -> Callable[[DataFrame, int], None]:
    """Return a foreachBatch function, because Spark does not support update mode for sinks written in Python.

    Batches are written exactly once too, with the query's id and the batch number.
    """

    def write(batch: DataFrame, number: int) -> None:
        query = batch.sparkSession.sparkContext.getLocalProperty(QUERY_ID)
        named = {"writeId": query, "writeVersion": str(number)} if is_exactly_once else {}
        batch.write.format(FORMAT).options(**options, **named).mode("append").save()

    is_exactly_once = parse_sink_options(options).exactly_once
    return write


def write_once(frame: DataFrame, pipeline: Pipeline, sink: Sink) -> None:
    """Write a frame that is not a stream; return when all of it is written."""
    with errors_located_at(sink.where, f"sink {sink.name}"):
        shaped = _shaped(frame, sink)
        if sink.kind is SinkKind.CONSOLE:
            options = {name.lower(): text for name, text in sink.options.items()}
            shaped.show(int(options.get("numrows", "20")), options.get("truncate", "true").lower() == "true")
            return
        writer = shaped.write.format(_format(sink)).options(**_options(pipeline, sink)).mode(sink.mode)
        if sink.partition_by:
            writer = writer.partitionBy(*sink.partition_by)
        writer.save()


def _format(sink: Sink) -> str:
    return {SinkKind.TOPIC: FORMAT, SinkKind.CONSOLE: "console"}.get(sink.kind) or str(sink.format)


def _options(pipeline: Pipeline, sink: Sink) -> dict[str, str]:
    if sink.kind is SinkKind.TOPIC:
        return sink_options(pipeline, sink)
    return {**sink.options, "path": sink.target} if sink.target else dict(sink.options)


def _shaped(frame: DataFrame, sink: Sink) -> DataFrame:
    return records(frame, sink) if sink.kind is SinkKind.TOPIC else frame


def records(frame: DataFrame, sink: Sink) -> DataFrame:
    """Return the frame with the columns that the topic sink expects."""
    from pyspark.sql.functions import array, col, expr, lit, struct, to_json

    columns: dict[str, Column] = {}
    if sink.value == "raw":
        there = {name.lower(): name for name in frame.columns}
        if "value" not in there:
            text = f"value: raw needs a column value in {sink.source}, which has {', '.join(frame.columns)}"
            raise DefinitionError([Problem(sink.where, f"sink {sink.name}: {text}")])
        columns = {name: col(there[name]) for name in RECORD_COLUMNS if name in there}
    elif sink.value == "json":
        columns["value"] = to_json(struct("*"))
    else:
        columns["value"] = expr(sink.value)
    if sink.key is not None:
        columns["key"] = expr(sink.key)
    if sink.topic_expression is not None:
        columns["topic"] = expr(sink.topic_expression).cast("string")
    if sink.timestamp is not None:
        columns["timestamp"] = expr(sink.timestamp).cast("timestamp")
    if sink.headers:
        made = [
            struct(lit(name).alias("key"), expr(text).cast("string").cast("binary").alias("value"))
            for name, text in sink.headers.items()
        ]
        columns["headers"] = array(*made)
    shaped = frame.select(*(column.alias(name) for name, column in columns.items()))
    return _as_text(shaped)


def _as_text(frame: DataFrame) -> DataFrame:
    """Cast keys and values other than text and bytes, such as numbers and times, to text."""
    changed: dict[str, Any] = {
        field.name: frame[field.name].cast("string")
        for field in frame.schema.fields
        if field.name in ("key", "value") and field.dataType.simpleString() not in _TEXT
    }
    return frame.withColumns(changed) if changed else frame

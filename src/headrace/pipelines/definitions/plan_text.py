"""Describes a pipeline as text: what it reads, how it transforms it and where it writes; with Spark, also columns and state."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from headrace.pipelines.definitions.definition import (
    BOOTSTRAP_SERVERS,
    Pipeline,
    Sink,
    SinkKind,
    Source,
    SourceKind,
    Step,
    StepKind,
    Trigger,
    TriggerKind,
)
from headrace.pipelines.definitions.frames import Frames, settings_of
from headrace.pipelines.definitions.topic_options import sink_options, source_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WIDTH = 120
_STATEFUL = {
    "Aggregate": "aggregation",
    "Distinct": "distinct",
    "Deduplicate": "deduplication",
    "DeduplicateWithinWatermark": "deduplication",
    "TransformWithState": "transformWithState",
    "TransformWithStateInPySpark": "transformWithState",
    "TransformWithStateInPandas": "transformWithState",
    "FlatMapGroupsWithState": "state of groups",
    "FlatMapGroupsInPandasWithState": "state of groups",
    "GlobalLimit": "limit",
}
_JOIN = "Join"


def plan(pipeline: Pipeline, spark: SparkSession | None = None) -> str:
    """Return the description; with a session, raise DefinitionError if Spark cannot analyse the pipeline."""
    lines = [
        f"pipeline {pipeline.name}  ({pipeline.origin})",
        f"  spark       {pipeline.spark.master}",
        f"  checkpoint  {pipeline.checkpoint}",
        f"  trigger     {_trigger_text(pipeline.trigger)}",
    ]
    if spark is None:
        return "\n".join([*lines, *_parts(pipeline, None)])
    with settings_of(pipeline, spark):
        return "\n".join([*lines, *_parts(pipeline, Frames(pipeline, spark))])


def _parts(pipeline: Pipeline, frames: Frames | None) -> Iterator[str]:
    for name, source in pipeline.sources.items():
        yield from _part("source", name, _source_text(pipeline, source), None if frames is None else frames[name])
    for step in _in_order(pipeline):
        text = _step_text(step)
        frame = None if frames is None else frames[step.name]
        if frames is not None:
            state = _state_of([frames[step.name]]) - _state_of([frames[one] for one in step.inputs])
            text += [f"keeps state: {', '.join(sorted(state))}"] if state else []
        yield from _part("step", step.name, text, frame)
    for name, sink in pipeline.sinks.items():
        yield from _part("sink", name, _sink_text(pipeline, sink), None)


def _part(what: str, name: str, details: Sequence[str], frame: DataFrame | None) -> Iterator[str]:
    yield ""
    yield f"{what} {name}"
    yield from textwrap.wrap(" · ".join(details), WIDTH, initial_indent="  ", subsequent_indent="    ")
    if frame is not None:
        columns = ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in frame.schema.fields)
        yield from textwrap.wrap(f"columns: {columns}", WIDTH, initial_indent="  ", subsequent_indent="    ")


def _in_order(pipeline: Pipeline) -> list[Step]:
    """Return the steps in topological order, each after its inputs."""
    done: dict[str, Step] = {}

    def add(name: str) -> None:
        step = pipeline.steps.get(name)
        if step is not None and name not in done:
            for one in step.inputs:
                add(one)
            done[name] = step

    for name in pipeline.steps:
        add(name)
    return list(done.values())


def _source_text(pipeline: Pipeline, source: Source) -> list[str]:
    if source.kind is SourceKind.TOPIC:
        options = source_options(pipeline, source)
        what = "topics like" if source.is_pattern else "topics" if "," in source.target else "topic"
        details = [f"{what} {source.target} at {options.get(BOOTSTRAP_SERVERS, 'no brokers')}", f"value {source.value}"]
        if source.bad_records.action != "fail":
            details.append(f"bad records: {source.bad_records.dead_letter or source.bad_records.action}")
    elif source.kind is SourceKind.FORMAT:
        details = [f"format {source.format}"]
    else:
        what = "new files in" if source.kind is SourceKind.FILES else "table"
        details = [f"{what} {source.target}"] + ([source.format] if source.format else [])
    details.append("a stream" if source.is_stream else "read at each start")
    if source.watermark is not None:
        details.append(f"watermark {source.watermark.column}, {source.watermark.delay}")
    return details


def _step_text(step: Step) -> list[str]:
    details = [f"← {', '.join(step.inputs) or 'nothing'}"]
    if step.kind is StepKind.DEDUPLICATE:
        details.append(f"deduplicate by {', '.join(step.keys)}")
    elif step.kind is StepKind.PYTHON:
        details.append(f"{step.python_file or step.where.file}:{step.python_name}")
    else:
        details.append(f"sql {' '.join(step.sql.split())}")
    if step.watermark is not None:
        details.append(f"watermark {step.watermark.column}, {step.watermark.delay}")
    return details


def _sink_text(pipeline: Pipeline, sink: Sink) -> list[str]:
    details = [f"← {sink.source}"]
    if sink.kind is SinkKind.TOPIC:
        options = {name.lower(): text for name, text in sink_options(pipeline, sink).items()}
        topic = f"topic {sink.target}" if sink.target else f"topic by {sink.topic_expression}"
        details += [
            f"{topic} at {options.get(BOOTSTRAP_SERVERS, 'no brokers')}",
            options.get("deliveryguarantee", "exactly-once"),
        ]
        details += ([f"key {sink.key}"] if sink.key else []) + [f"value {sink.value}"]
    elif sink.kind is SinkKind.FILES:
        details.append(f"{sink.format} in {sink.target}")
        details += [f"partitioned by {', '.join(sink.partition_by)}"] if sink.partition_by else []
    else:
        details.append(sink.format or sink.kind.value)
    details.append(f"mode {sink.mode}")
    details.append(
        _trigger_text(pipeline.trigger_of(sink)) if pipeline.is_stream(sink.source) else "once at each start"
    )
    return details


def _trigger_text(trigger: Trigger) -> str:
    if trigger.kind is TriggerKind.AVAILABLE_NOW:
        return "available-now, then it ends"
    is_none = all(part == "0" for part in trigger.interval.split()[::2])
    return "one batch after the other" if is_none else f"every {trigger.interval}"


def _state_of(frames: Sequence[DataFrame]) -> Counter[str]:
    """Count the stateful operators in the streaming plans of the frames."""
    found: Counter[str] = Counter()
    waiting: list[Any] = [frame._jdf.queryExecution().analyzed() for frame in frames]
    while waiting:
        node = waiting.pop()
        if not node.isStreaming():
            continue
        kind = node.getClass().getSimpleName()
        children = node.children()
        inner = [children.apply(index) for index in range(children.size())]
        if kind in _STATEFUL:
            found[_STATEFUL[kind]] += 1
        elif kind == _JOIN and all(one.isStreaming() for one in inner):
            found["join of streams"] += 1
        waiting += inner
    return found

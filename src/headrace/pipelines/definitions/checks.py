"""Checks of pipelines that need no Spark: unknown names, cycles, conflicts between pipelines, options, state that is never dropped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from headrace.pipelines.definitions.definition import (
    DefinitionError,
    Pipeline,
    Place,
    Problem,
    Sink,
    SinkKind,
    Source,
    SourceKind,
    Step,
    StepKind,
)
from headrace.pipelines.definitions.fields import suggestion
from headrace.pipelines.definitions.sql_names import scan
from headrace.pipelines.definitions.topic_options import sink_problem, source_problems


def check(pipelines: Sequence[Pipeline]) -> list[str]:
    """Raise DefinitionError with all problems, including conflicts between pipelines; return warnings, each with its location."""
    problems = problems_of(pipelines)
    if problems:
        raise DefinitionError(problems)
    return [str(one) for pipeline in pipelines for one in _warnings(pipeline)]


def problems_of(pipelines: Sequence[Pipeline]) -> list[Problem]:
    found = [problem for pipeline in pipelines for problem in _problems(pipeline)]
    return [*found, *_clashes(pipelines)]


def _problems(pipeline: Pipeline) -> Iterator[Problem]:
    yield from _twice(pipeline)
    yield from _unknown(pipeline)
    yield from _circles(pipeline)
    for source in pipeline.sources.values():
        if source.kind is SourceKind.TOPIC:
            for text in source_problems(pipeline, source):
                yield Problem(source.where, f"source {source.name}: {text}")
    for sink in pipeline.sinks.values():
        wrong = sink_problem(pipeline, sink) if sink.kind is SinkKind.TOPIC else None
        if wrong is not None:
            yield Problem(sink.where, f"sink {sink.name}: {wrong}")
        wrong = _mode_problem(pipeline, sink)
        if wrong is not None:
            yield Problem(sink.where, f"sink {sink.name}: {wrong}")
    for step in pipeline.steps.values():
        yield from _state_without_watermark(pipeline, step)


def _mode_problem(pipeline: Pipeline, sink: Sink) -> str | None:
    steps = [pipeline.steps[one] for one in pipeline.upstream(sink.source) if one in pipeline.steps]
    if sink.source not in (*pipeline.sources, *pipeline.steps) or any(one.kind is StepKind.PYTHON for one in steps):
        return None  # functions may turn tables into streams
    if not pipeline.is_stream(sink.source):
        wrong = sink.mode not in ("append", "overwrite")
        return f"nothing that it writes is a stream: mode: append or overwrite, not {sink.mode}" if wrong else None
    if sink.mode == "overwrite":
        return f"mode: overwrite is for what is no stream, but {sink.source} is one"
    if sink.kind is SinkKind.FILES and sink.mode != "append":
        return f"files are written with mode: append, not {sink.mode}"
    return None


def _twice(pipeline: Pipeline) -> Iterator[Problem]:
    """Yield names that are defined twice; SQL names are case-insensitive."""
    seen: dict[str, Source | Step] = {}
    parts: list[Source | Step] = [*pipeline.sources.values(), *pipeline.steps.values()]
    for part in parts:
        first = seen.setdefault(part.name.lower(), part)
        if first is not part:
            yield Problem(part.where, f"there is a source or step {first.name} already, in line {first.where.line}")


def _unknown(pipeline: Pipeline) -> Iterator[Problem]:
    there = (*pipeline.sources, *pipeline.steps)
    for step in pipeline.steps.values():
        for name in step.inputs:
            if name not in there:
                near = suggestion(name, [one for one in there if one != step.name])
                hint = near or f"; there are {', '.join(one for one in there if one != step.name)}"
                yield Problem(
                    _location_of(step, name), f"step {step.name} reads {name}, which is no source and no step{hint}"
                )
    for sink in pipeline.sinks.values():
        if sink.source and sink.source not in there:
            hint = suggestion(sink.source, there) or f"; there are {', '.join(there)}"
            yield Problem(sink.where, f"sink {sink.name} is from {sink.source}, which is no source and no step{hint}")


def _location_of(step: Step, name: str) -> Place:
    """Return the line of a step's query that contains the name."""
    if step.sql_where is None:
        return step.where
    lines = (one.line for one in scan(step.sql).references if one.name.lower() == name.lower())
    return Place(step.sql_where.file, step.sql_where.line + next(lines, 0))


def _circles(pipeline: Pipeline) -> Iterator[Problem]:
    """Remove steps whose inputs are all resolved until none is left; steps that remain form a cycle."""
    left = {name: {one for one in step.inputs if one in pipeline.steps} for name, step in pipeline.steps.items()}
    while ready := [name for name, inputs in left.items() if not inputs]:
        for name in ready:
            del left[name]
        for inputs in left.values():
            inputs.difference_update(ready)
    if left:
        circle = [next(iter(left))]
        while circle[-1] not in circle[:-1]:
            circle.append(min(one for one in left[circle[-1]] if one in left))
        circle = circle[circle.index(circle[-1]) :]
        yield Problem(pipeline.steps[circle[0]].where, f"steps read each other in a circle: {' ← '.join(circle)}")


def _has_watermark(pipeline: Pipeline, name: str) -> bool:
    """Return whether there is a watermark, or may be: functions and SQL can set one."""
    for one in pipeline.upstream(name):
        if one in pipeline.sources and pipeline.sources[one].watermark is not None:
            return True
        step = pipeline.steps.get(one)
        if step is not None and (
            step.watermark is not None or step.kind is StepKind.PYTHON or "watermark" in scan(step.sql).words
        ):
            return True
    return False


def _state_without_watermark(pipeline: Pipeline, step: Step) -> Iterator[Problem]:
    inputs = [one for one in step.inputs if one in pipeline.sources or one in pipeline.steps]
    if not inputs or not all(pipeline.is_stream(one) for one in inputs):
        return
    if any(_has_watermark(pipeline, one) for one in inputs):
        return
    where = f"give {_sources_text(pipeline, step)} a watermark: {{column: …, delay: …}}"
    if step.kind is StepKind.DEDUPLICATE:
        yield Problem(step.where, f"step {step.name} would remember every event for ever; {where}")
    if step.kind is StepKind.SQL and scan(step.sql).groups:
        for sink in _sinks_of(pipeline, step.name):
            if sink.mode == "append":
                why = f"step {step.name} groups a stream without a watermark: sink {sink.name} (mode: append) would wait for ever"
                instead = "" if sink.kind is SinkKind.FILES else ", or the sink mode: update"
                yield Problem(step.where, f"{why}; {where}{instead}")


def _sources_text(pipeline: Pipeline, step: Step) -> str:
    streams = [
        one for one in pipeline.upstream(step.name) if one in pipeline.sources and pipeline.sources[one].is_stream
    ]
    return ("source " if len(streams) == 1 else "sources ") + " and ".join(streams)


def _sinks_of(pipeline: Pipeline, name: str) -> Iterator[Sink]:
    return (sink for sink in pipeline.sinks.values() if name in pipeline.upstream(sink.source))


def _clashes(pipelines: Sequence[Pipeline]) -> Iterator[Problem]:
    names: dict[str, Pipeline] = {}
    checkpoints: dict[str, Pipeline] = {}
    outputs: dict[str, Sink] = {}
    for pipeline in pipelines:
        first = names.setdefault(pipeline.name, pipeline)
        if first is not pipeline:
            yield Problem(pipeline.where, f"there is a pipeline {pipeline.name} already: {first.where}")
        first = checkpoints.setdefault(pipeline.checkpoint.rstrip("/"), pipeline)
        if first is not pipeline:
            yield Problem(
                pipeline.where,
                f"pipeline {pipeline.name} has the checkpoint {pipeline.checkpoint} of pipeline {first.name}: {first.where}",
            )
        for sink in pipeline.sinks.values():
            if sink.kind is not SinkKind.FILES:
                continue
            other = outputs.setdefault(sink.target.rstrip("/"), sink)
            if other is not sink:
                yield Problem(
                    sink.where, f"sink {sink.name} writes into {sink.target}, as {other.name} does: {other.where}"
                )


def _warnings(pipeline: Pipeline) -> Iterator[Problem]:
    used = {name for sink in pipeline.sinks.values() for name in pipeline.upstream(sink.source)}
    for what, parts in (("source", pipeline.sources), ("step", pipeline.steps)):
        for name, part in parts.items():
            if name not in used:
                yield Problem(part.where, f"no sink uses {what} {name}")
    for step in pipeline.steps.values():
        streams = [one for one in step.inputs if pipeline.is_stream(one)]
        if len(streams) > 1 and "join" in scan(step.sql).words:
            for one in streams:
                if not _has_watermark(pipeline, one):
                    yield Problem(
                        step.where,
                        f"step {step.name} joins streams: {one} has no watermark, so it is remembered for ever",
                    )
    for sink in pipeline.sinks.values():
        for name in pipeline.upstream(sink.source):
            source = pipeline.sources.get(name)
            if source is not None and sink.kind is SinkKind.TOPIC and sink.target in source.target.split(","):
                yield Problem(sink.where, f"sink {sink.name} writes into the topic {sink.target} that it reads")

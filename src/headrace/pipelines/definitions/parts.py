"""Reads a pipeline from a tree: its keys, its defaults, and the overrides of a command line or test."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from headrace.pipelines.definitions.definition import (
    Pipeline,
    Place,
    Sink,
    Source,
    SparkSettings,
    Step,
    StepKind,
    Trigger,
)
from headrace.pipelines.definitions.fields import Fields, Problems, shown
from headrace.pipelines.definitions.paths import complete
from headrace.pipelines.definitions.sink_parts import read_sink, read_trigger
from headrace.pipelines.definitions.source_parts import read_source
from headrace.pipelines.definitions.step_parts import read_step
from headrace.pipelines.definitions.topic_options import unknown_setting
from headrace.pipelines.definitions.tree import Node, from_python

KEYS = ("name", "settings", "spark", "checkpoint", "trigger", "sources", "steps", "sinks")
CHECKPOINTS = ".headrace/checkpoints"
NAME_CHARACTERS_MAX = 100
_PIPELINE_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_.-]{{0,{NAME_CHARACTERS_MAX - 1}}}\Z")
_PART_NAME = re.compile(rf"[A-Za-z_][A-Za-z0-9_]{{0,{NAME_CHARACTERS_MAX - 1}}}\Z")

T = TypeVar("T", Source, Step, Sink | None)


def read_pipeline(node: Node, file: Path, problems: Problems, made: Mapping[str, Step] | None = None) -> Pipeline:
    """Read a pipeline; problems are added to `problems`, and the pipeline is then incomplete.

    `made` are steps that exist already.
    """
    fields = Fields(node, problems, "a pipeline")
    fields.only(KEYS)
    folder = file.parent.absolute()
    name = fields.needed("name", "what it is called, in lists and metrics") or ""
    if name and not _PIPELINE_NAME.match(name):
        fields.wrong(
            "name", f"{shown(name)} is not made of at most {NAME_CHARACTERS_MAX} letters, digits, - _ and dots"
        )
    fields.require("sources", "what it reads")
    fields.require("sinks", "where its results go")
    for key in ("sources", "sinks"):
        if key in fields and not fields.named(key):
            fields.wrong(key, "has no entry")
    checkpoint = fields.text("checkpoint")
    settings = _settings(fields)
    sources = _parts(fields, "sources", folder, read_source)
    steps = {**_parts(fields, "steps", folder, read_step), **(made or {})}
    sinks = _parts(fields, "sinks", folder, read_sink)
    return Pipeline(
        name=name,
        where=fields.location("name"),
        origin=file,
        settings=settings,
        spark=_spark(fields),
        checkpoint=complete(checkpoint or f"{CHECKPOINTS}/{name}", folder),
        sources=sources,
        steps=_matched(steps, sources),
        sinks={name: sink for name, sink in sinks.items() if sink is not None},
        trigger=read_trigger(fields) or Trigger(),
    )


def _settings(fields: Fields) -> dict[str, str]:
    node = fields.node("settings")
    inner = None if node is None else Fields(node, fields.problems, "settings")
    for name in inner or ():
        wrong = unknown_setting(name)
        if wrong is not None and inner is not None:
            fields.problems.add(inner.location(name), wrong)
    return fields.mapping("settings")


def _parts(fields: Fields, key: str, folder: Path, read: Callable[[str, Fields, Path], T]) -> dict[str, T]:
    found: dict[str, T] = {}
    for name, inner in fields.named(key).items():
        if not _PART_NAME.match(name):
            expected = f"at most {NAME_CHARACTERS_MAX} letters, digits and _, as SQL has them"
            fields.problems.add(inner.where, f"{shown(name)} is no name: {expected}")
        found[name] = read(name, inner, folder)
    return found


def _matched(steps: Mapping[str, Step], sources: Mapping[str, Source]) -> dict[str, Step]:
    """Give inputs of SQL steps the spelling of their definitions, because SQL names are case-insensitive."""
    names = {name.lower(): name for name in (*sources, *steps)}
    return {
        name: replace(step, inputs=tuple(names.get(one.lower(), one) for one in step.inputs))
        if step.kind is StepKind.SQL
        else step
        for name, step in steps.items()
    }


def _spark(fields: Fields) -> SparkSettings:
    node = fields.node("spark")
    if node is None:
        return SparkSettings()
    inner = Fields(node, fields.problems, "spark")
    inner.only(("master", "conf"))
    conf = inner.mapping("conf")
    if "spark.master" in conf:
        inner.wrong("conf", "spark.master is set by the key master, next to conf")
    return SparkSettings(inner.text("master") or SparkSettings.master, conf)


def overridden(pipeline: Pipeline, overrides: Mapping[str, str], problems: Problems) -> Pipeline:
    """Apply overrides: `spark.…`, `trigger` (all sinks), `checkpoint` (relative to the working directory) or topic settings."""
    settings, conf, master = dict(pipeline.settings), dict(pipeline.spark.conf), pipeline.spark.master
    for name, text in overrides.items():
        if name == "spark.master":
            master = text
        elif name.startswith("spark."):
            conf[name] = text
        elif name not in ("trigger", "checkpoint"):
            wrong = unknown_setting(name)
            if wrong is not None:
                problems.add(Place(pipeline.origin), wrong)
            settings[name] = text
    found = replace(pipeline, settings=settings, spark=SparkSettings(master, conf))
    if "checkpoint" in overrides:
        found = replace(found, checkpoint=complete(overrides["checkpoint"], Path.cwd()))
    if "trigger" in overrides:
        here = Place(pipeline.origin)
        given = Fields(from_python({"trigger": overrides["trigger"]}, here), problems, "what is set besides")
        sinks = {name: replace(sink, trigger=None) for name, sink in pipeline.sinks.items()}
        found = replace(found, trigger=read_trigger(given) or found.trigger, sinks=sinks)
    return found

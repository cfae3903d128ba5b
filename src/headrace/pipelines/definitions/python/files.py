"""Pipelines written in Python, with the same keys as in YAML.

shop = pipeline("shop", settings={"kafka.bootstrap.servers": "localhost:9092"})
shop.source("orders", topic="orders", value="json", schema="id bigint, amount double")

@shop.step
def large(orders):
    return orders.where("amount > 100")

shop.sink("alerts", "large", topic="alerts", key="id")
"""

from __future__ import annotations

import ast
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar, overload

from headrace.pipelines.definitions.checks import problems_of
from headrace.pipelines.definitions.definition import DefinitionError, Pipeline, Place, Problem, Step
from headrace.pipelines.definitions.fields import Fields, Problems
from headrace.pipelines.definitions.parts import overridden, read_pipeline
from headrace.pipelines.definitions.python.functions import Unreadable, parsed
from headrace.pipelines.definitions.python.modules import run_file
from headrace.pipelines.definitions.step_parts import function_step
from headrace.pipelines.definitions.tree import Entries, Entry, from_python

HERE = "headrace.pipelines.definitions"
F = TypeVar("F", bound=Callable[..., Any])


class Draft:
    """A pipeline under construction; `definition` returns the result."""

    def __init__(self, name: str, keys: Mapping[str, Any], where: Place) -> None:
        self._where = where
        self._keys = {"name": name, **{key: value for key, value in keys.items() if value is not None}}
        self._parts: dict[str, dict[str, Entry]] = {"sources": {}, "steps": {}, "sinks": {}}
        self._functions: dict[str, tuple[Entry, Callable[..., Any]]] = {}
        self._twice: list[Problem] = []

    def source(self, name: str, **keys: Any) -> None:
        """Add a source with the keys of the YAML file, such as `topic`, `value` and `schema`; None leaves a key out.

        The exception is bad_records=None, which is the YAML file's `null`: a row of nulls for a bad record.
        """
        self._add("sources", name, keys)

    def sql(self, name: str, sql: str, **keys: Any) -> None:
        """Add a step that runs a query over the names of sources and steps; `keys` may have a `watermark`."""
        self._add("steps", name, {"sql": sql, **keys})

    def deduplicate(self, name: str, source: str, keys: list[str]) -> None:
        """Add a step that keeps the first row for each value of the columns `keys`.

        In a stream, duplicates are found within the watermark, which the source or a step before must then set.
        """
        self._add("steps", name, {"deduplicate": source, "keys": keys})

    def sink(self, name: str, source: str, **keys: Any) -> None:
        """Add a sink that writes the source or step `source`, with the keys of the YAML file except `from`."""
        self._add("sinks", name, {"from": source, **keys})

    @overload
    def step(self, function: F) -> F: ...
    @overload
    def step(self, *, name: str | None = None, **keys: Any) -> Callable[[F], F]: ...
    def step(self, function: Callable[..., Any] | None = None, *, name: str | None = None, **keys: Any) -> Any:
        """Add a function from DataFrames to a DataFrame as a step; its parameters are named after its inputs."""
        if function is None:
            return lambda given: self._add_function(given, name, keys)
        return self._add_function(function, name, keys)

    def definition(self, overrides: Mapping[str, str] | None = None) -> Pipeline:
        """Return the pipeline; raise DefinitionError with all problems."""
        problems = Problems(os.environ)
        found = self.read(problems, overrides or {})
        wrong = [*problems.found, *problems_of([found])]
        if wrong:
            raise DefinitionError(wrong)
        return found

    def read(self, problems: Problems, overrides: Mapping[str, str]) -> Pipeline:
        """Return the pipeline, and add its problems to `problems` instead of raising them; for `load`.

        If there are problems, the pipeline is incomplete. `overrides` are those of `load`.
        """
        problems.found += self._twice
        entries = {key: Entry(self._where, from_python(value, self._where)) for key, value in self._keys.items()}
        for key, parts in self._parts.items():
            if parts:
                entries[key] = Entry(self._where, Entries(self._where, parts))
        made: dict[str, Step] = {}
        for name, (entry, function) in self._functions.items():
            made[name] = function_step(name, Fields(entry.node, problems, f"step {name}"), function)
        pipeline = read_pipeline(Entries(self._where, entries), self._where.file, problems, made)
        return overridden(pipeline, overrides, problems)

    def _add(self, key: str, name: str, keys: Mapping[str, Any]) -> None:
        where = _caller(3)
        self._once(key, name, where)
        given = {one: value for one, value in keys.items() if value is not None or one == "bad_records"}
        self._parts[key][name] = Entry(where, from_python(given, where))

    def _add_function(self, function: F, name: str | None, keys: Mapping[str, Any]) -> F:
        code = getattr(function, "__code__", None)
        where = self._where if code is None else Place(Path(code.co_filename), code.co_firstlineno)
        name = name or function.__name__
        self._once("steps", name, where)
        self._functions[name] = Entry(where, from_python(keys, where)), function
        return function

    def _once(self, key: str, name: str, where: Place) -> None:
        if name in self._parts[key] or (key == "steps" and name in self._functions):
            self._twice.append(Problem(where, f"there is {key.removesuffix('s')} {name} already"))


_DRAFTS: ContextVar[list[Draft] | None] = ContextVar("drafts", default=None)


def pipeline(
    name: str,
    *,
    settings: Mapping[str, Any] | None = None,
    spark: Mapping[str, Any] | None = None,
    checkpoint: str | None = None,
    trigger: str | None = None,
) -> Draft:
    """Create a pipeline, to which sources, steps and sinks are then added.

    `settings` are options for all its topics; `spark` may have the keys `master` and `conf`. None stands for the defaults:
    the checkpoint folder .headrace/checkpoints/NAME and a trigger of "0 seconds". Relative paths start at the folder of the
    file that calls this function. Nothing is checked yet: `Draft.definition` and `load` report problems.
    """
    keys = {"settings": settings, "spark": spark, "checkpoint": checkpoint, "trigger": trigger}
    draft = Draft(name, keys, _caller(2))
    drafts = _DRAFTS.get()
    if drafts is not None:
        drafts.append(draft)
    return draft


def _caller(depth: int) -> Place:
    frame = sys._getframe(depth)
    return Place(Path(frame.f_code.co_filename), frame.f_lineno)


def defines_pipelines(path: Path) -> bool:
    """Return whether the file imports `pipeline`; a folder may contain other Python files too."""
    try:
        tree = parsed(path)
    except Unreadable:
        return False
    return any(
        isinstance(node, ast.ImportFrom) and node.module == HERE and any(one.name == "pipeline" for one in node.names)
        for node in ast.walk(tree)
    )


def read_python(path: Path, problems: Problems, overrides: Mapping[str, str]) -> list[Pipeline]:
    """Run the file and read its pipelines; an exception becomes a problem at the line that raised it."""
    drafts: list[Draft] = []
    token = _DRAFTS.set(drafts)
    try:
        run_file(path)
    except (Exception, SystemExit) as error:
        problems.add(*raised_in(path, error))
        return []
    finally:
        _DRAFTS.reset(token)
    if not drafts:
        problems.add(Place(path), f'makes no pipeline: from {HERE} import pipeline, then pipeline("name", …)')
    return [draft.read(problems, overrides) for draft in drafts]


def raised_in(path: Path, error: BaseException) -> tuple[Place, str]:
    """Return the last line in the user's file or folder that the exception passed through, and its message in one line."""
    if isinstance(error, OSError) and error.filename == str(path) and error.__traceback__ is not None:
        return Place(path), f"cannot be read: {error.strerror}"
    if isinstance(error, SyntaxError) and error.filename is not None:
        return Place(Path(error.filename), error.lineno or 0), f"is no Python: {error.msg}"
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame for frame in frames if Path(frame.filename).parent == path.parent]
    location = Place(Path(lines[-1].filename), lines[-1].lineno or 0) if lines else Place(path)
    return location, f"{type(error).__name__}: {' '.join(str(error).split()) or 'without a word'}"

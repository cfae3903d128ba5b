"""Reads a step from its definition: SQL, a Python function, or deduplicate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.pipelines.definitions.definition import Step, StepKind
from headrace.pipelines.definitions.fields import Fields, suggestion
from headrace.pipelines.definitions.paths import complete
from headrace.pipelines.definitions.python.functions import Parameters, Unreadable, functions_of, parameters_of
from headrace.pipelines.definitions.source_parts import read_watermark
from headrace.pipelines.definitions.sql_names import QUERIES, scan
from headrace.pipelines.definitions.tree import Text

_KEYS = {
    "sql": ("sql", "watermark"),
    "python": ("python", "inputs", "watermark"),
    "deduplicate": ("deduplicate", "keys"),
}


def read_step(name: str, fields: Fields, folder: Path) -> Step:
    """Read as much of the step as possible, so that references to it are not reported too."""
    kind = fields.kind(_KEYS)
    if kind is None:
        return Step(name=name, where=fields.where, kind=StepKind.PYTHON, inputs=())
    if kind == "sql":
        return _sql(name, fields)
    if kind == "python":
        return _python(name, fields, folder)
    source = fields.text("deduplicate")
    fields.require("keys", "the columns that tell events apart")
    return Step(
        name=name,
        where=fields.where,
        kind=StepKind.DEDUPLICATE,
        inputs=() if source is None else (source,),
        keys=fields.texts("keys"),
    )


def _sql(name: str, fields: Fields) -> Step:
    sql = fields.text("sql", fill=False) or ""  # Spark itself substitutes ${…} here
    node = fields.node("sql")
    names = scan(sql)
    if sql and names.first_word not in QUERIES:
        fields.wrong("sql", "a query is expected, which begins with SELECT, WITH, FROM, VALUES or TABLE")
    first = node.first_line if isinstance(node, Text) and node.first_line else fields.location("sql")
    return Step(
        name=name,
        where=fields.where,
        kind=StepKind.SQL,
        inputs=names.names,
        sql=sql,
        sql_where=first,
        watermark=read_watermark(fields),
    )


def _python(name: str, fields: Fields, folder: Path) -> Step:
    path, _, function = (fields.text("python") or "").rpartition(":")
    file = Path(complete(path, folder))
    inputs = fields.texts("inputs") if "inputs" in fields else None
    there: dict[str, Parameters | None] = {}
    if "python" in fields and (not path.endswith(".py") or not function.isidentifier()):
        fields.wrong("python", "a file and a function in it are expected, as steps.py:function")
    else:
        try:
            there = functions_of(file)
            if function not in there:
                fields.wrong("python", f"{file} has no function {function}{suggestion(function, there)}")
        except Unreadable as error:
            fields.wrong("python", str(error))
    known = there.get(function, Parameters(inputs or ()))
    return Step(
        name=name,
        where=fields.where,
        kind=StepKind.PYTHON,
        inputs=_inputs(fields, inputs, known, function),
        python_file=file,
        python_name=function,
        watermark=read_watermark(fields),
    )


def function_step(name: str, fields: Fields, function: Callable[..., Any]) -> Step:
    """Return a step for a function of a pipeline that is written in Python."""
    fields.only(("inputs", "watermark"))
    inputs = fields.texts("inputs") if "inputs" in fields else None
    return Step(
        name=name,
        where=fields.where,
        kind=StepKind.PYTHON,
        inputs=_inputs(fields, inputs, parameters_of(function), name),
        python_name=name,
        function=function,
        watermark=read_watermark(fields),
    )


def _inputs(
    fields: Fields, inputs: tuple[str, ...] | None, parameters: Parameters | None, function: str
) -> tuple[str, ...]:
    """Return the given inputs, or else the names of the parameters."""
    if parameters is None:
        if inputs is None:
            fields.problems.add(fields.where, f"{fields.what} needs inputs: what {function} is called with")
        return inputs or ()
    if inputs is None:
        return parameters.names
    if not parameters.takes(len(inputs)):
        fields.wrong("inputs", f"{function} takes {parameters}, not {len(inputs)}")
    return inputs

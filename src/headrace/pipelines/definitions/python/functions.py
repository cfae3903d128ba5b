"""Finds the functions of a Python file and their parameters without running it."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.base.errors import HeadraceError

FILE_BYTES_MAX = 1024 * 1024


class Unreadable(HeadraceError):
    """A file that is missing or is not valid Python; the text says where and why."""


@dataclass(frozen=True)
class Parameters:
    names: tuple[str, ...]  # required parameters
    optional: int = 0
    any_number: bool = False

    def takes(self, count: int) -> bool:
        return len(self.names) <= count and (self.any_number or count <= len(self.names) + self.optional)

    def __str__(self) -> str:
        least, most = len(self.names), len(self.names) + self.optional
        if self.any_number:
            return f"at least {least} inputs"
        return f"{least} input{'' if least == 1 else 's'}" if least == most else f"{least} to {most} inputs"


def functions_of(path: Path) -> dict[str, Parameters | None]:
    """Return all names defined at the top level; None for those whose parameters are unknown without running the file."""
    found: dict[str, Parameters | None] = {}
    for node in parsed(path).body:
        if isinstance(node, ast.FunctionDef) and not node.decorator_list:
            found[node.name] = _parameters(node.args)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = None
        else:
            found.update(dict.fromkeys(_names(node)))
    return found


def _names(node: ast.stmt) -> Iterator[str]:
    """Yield the names bound by a statement, including those within `if` and `try`; may yield too many, never too few."""
    for one in ast.walk(node):
        if isinstance(one, ast.FunctionDef | ast.ClassDef):
            yield one.name
        elif isinstance(one, ast.alias):
            yield one.asname or one.name
        elif isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
            yield one.id


def parsed(path: Path) -> ast.Module:
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise Unreadable(f"{path} cannot be read: {error.strerror}") from None
    if len(data) > FILE_BYTES_MAX:
        raise Unreadable(f"{path} is longer than {FILE_BYTES_MAX} bytes")
    try:
        return ast.parse(data, str(path))
    except SyntaxError as error:
        raise Unreadable(f"{path}:{error.lineno or 1}: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise Unreadable(f"{path} is no Python: {error}") from None


def _parameters(arguments: ast.arguments) -> Parameters:
    names = [one.arg for one in (*arguments.posonlyargs, *arguments.args)]
    optional = len(arguments.defaults)
    return Parameters(tuple(names[: len(names) - optional]), optional, arguments.vararg is not None)


def parameters_of(function: Callable[..., Any]) -> Parameters | None:
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return None
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    needed = tuple(one.name for one in positional if one.default is one.empty)
    any_number = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    return Parameters(needed, len(positional) - len(needed), any_number)

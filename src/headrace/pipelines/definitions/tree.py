"""Definitions as written, before interpretation: texts, lists and mappings, each with its location. Common to YAML and Python."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headrace.pipelines.definitions.definition import Place


@dataclass(frozen=True)
class Text:
    where: Place
    value: str
    is_null: bool = False
    first_line: Place | None = None  # where the text itself starts, if on another line (block scalars)

    what = "a text"


@dataclass(frozen=True)
class Items:
    where: Place
    items: tuple[Node, ...]

    what = "a list"


@dataclass(frozen=True)
class Entry:
    where: Place  # location of the key
    node: Node


@dataclass(frozen=True)
class Entries:
    where: Place
    entries: Mapping[str, Entry]

    what = "a mapping"


Node = Text | Items | Entries


def from_python(value: Any, where: Place) -> Node:
    """Convert keyword arguments; numbers and booleans become text as in YAML."""
    if isinstance(value, Mapping):
        return Entries(where, {str(key): Entry(where, from_python(one, where)) for key, one in value.items()})
    if isinstance(value, list | tuple):
        return Items(where, tuple(from_python(one, where) for one in value))
    if value is None:
        return Text(where, "null", is_null=True)
    return Text(where, str(value).lower() if isinstance(value, bool) else str(value), first_line=where)

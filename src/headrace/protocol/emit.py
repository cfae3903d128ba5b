"""Building and loading of generated source code, used by decoding.py and encoding.py."""

from __future__ import annotations

import linecache
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from headrace.protocol.declare import ResolvedField, Struct, fields_of

_STRUCT_NAMES = str.maketrans({"?": "o"})  # characters that cannot be part of a Python name


class Source:
    """The lines of one generated module, and the objects that its names refer to."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.names: dict[str, Any] = {}
        self._depth = 0
        self._counts: dict[str, int] = {}

    def line(self, text: str) -> None:
        self.lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, opening: str) -> Iterator[None]:
        self.line(opening)
        self._depth += 1
        yield
        self._depth -= 1

    def fresh(self, stem: str) -> str:
        """Return a new variable name that begins with `stem`."""
        number = self._counts[stem] = self._counts.get(stem, 0) + 1
        return f"{stem}{number}"

    def bind(self, name: str, value: Any) -> str:
        assert self.names.setdefault(name, value) is value, f"{name} is bound to two values"
        return name

    def bind_struct(self, struct_class: type[Struct]) -> str:
        return self.bind(struct_class.__name__, struct_class)

    def bind_unpack(self, codes: str) -> str:
        return self.bind("unpack_" + codes.translate(_STRUCT_NAMES), _unpack_from(codes))

    def bind_pack(self, codes: str) -> str:
        return self.bind("pack_" + codes.translate(_STRUCT_NAMES), _pack(codes))

    def load(self, title: str, function: str) -> Callable[..., Any]:
        """Compile the lines and return one of their functions; linecache keeps the lines for tracebacks."""
        text = "\n".join(self.lines) + "\n"
        filename = f"<{title}>"
        linecache.cache[filename] = (len(text), None, text.splitlines(keepends=True), filename)
        exec(compile(text, filename, "exec"), self.names)
        loaded: Callable[..., Any] = self.names[function]
        return loaded


@cache
def _unpack_from(codes: str) -> Callable[..., tuple[Any, ...]]:
    return struct.Struct(">" + codes).unpack_from


@cache
def _pack(codes: str) -> Callable[..., bytes]:
    return struct.Struct(">" + codes).pack


def failing_line(error: Exception) -> str:
    """Return the generated line that raised the error; it contains the name of the field."""
    line = ""
    trace = error.__traceback__
    while trace and (filename := trace.tb_frame.f_code.co_filename) in linecache.cache and filename[0] == "<":
        line = linecache.getline(filename, trace.tb_lineno).strip()
        trace = trace.tb_next
    return line


def is_tagged(field: ResolvedField, version: int) -> bool:
    return field.tag is not None and version in field.tagged


def untagged_fields(struct_class: type[Struct], version: int) -> list[ResolvedField]:
    return [field for field in fields_of(struct_class) if version in field.versions and not is_tagged(field, version)]


def tagged_fields(struct_class: type[Struct], version: int) -> list[ResolvedField]:
    """Return the tagged fields in the order of their tags, which is the wire order."""
    found = [field for field in fields_of(struct_class) if version in field.versions and is_tagged(field, version)]
    return sorted(found, key=lambda field: field.tag or 0)


def least_size(struct_class: type[Struct], version: int, flexible: bool) -> int:
    """Return the smallest encoded size of the struct in bytes."""
    size = 1 if flexible else 0
    for field in untagged_fields(struct_class, version):
        if version in field.nullable and field.struct and not field.is_array:
            size += 1
        elif field.is_array:
            size += 1 if flexible else 4
        elif field.struct:
            size += least_size(field.struct, version, flexible)
        else:
            size += least_wire_size(field, flexible)
    return size


def least_wire_size(field: ResolvedField, flexible: bool) -> int:
    assert field.wire
    if field.wire.width:
        return field.wire.width
    if flexible and field.flexible:
        return 1
    return 2 if field.wire.name == "string" else 4

"""The contents of a reference page: functions, classes and type aliases, each with its signature and docstring."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

WIDTH = 100  # columns of a signature; a longer one has one parameter per line


@dataclass(frozen=True)
class Signature:
    """A signature as readers call it, without `self`."""

    name: str
    parameters: tuple[str, ...] | None = ()  # None for a property or a class that takes no arguments of its own
    returns: str = ""
    prefix: str = ""  # async, property, class …

    def __str__(self) -> str:
        start = f"{self.prefix} {self.name}".lstrip()
        if self.parameters is None:
            return f"{start}: {self.returns}" if self.returns else start
        end = f" -> {self.returns}" if self.returns else ""
        line = f"{start}({', '.join(self.parameters)}){end}"
        if len(line) <= WIDTH or not self.parameters:
            return line
        lines = "".join(f"    {parameter},\n" for parameter in self.parameters)
        return f"{start}(\n{lines}){end}"


@dataclass(frozen=True)
class Function:
    name: str
    signatures: tuple[Signature, ...]  # several if the function is overloaded
    doc: str = ""
    parameter_names: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Fixture:
    """A pytest fixture; tests receive `value`."""

    name: str
    value: str
    scope: str
    doc: str = ""


@dataclass(frozen=True)
class Attribute:
    name: str
    type: str = ""  # empty if the source does not state it
    value: str = ""  # value of an enum member
    comment: str = ""


class ClassKind(Enum):
    PLAIN = "plain"
    NAMED_TUPLE = "named tuple"
    DATACLASS = "dataclass"
    ENUM = "enum"


@dataclass(frozen=True)
class Class:
    name: str
    kind: ClassKind
    signature: Signature
    bases: tuple[str, ...] = ()  # without those that only make it a named tuple or an enum
    doc: str = ""  # docstring of the class, then that of its constructor
    parameter_names: frozenset[str] = frozenset()
    attributes: tuple[Attribute, ...] = ()
    methods: tuple[Function, ...] = ()  # properties too, in source order
    with_statements: tuple[str, ...] = ()  # "with", "async with"


@dataclass(frozen=True)
class Alias:
    """A type alias or a constant."""

    name: str
    value: str
    comment: str = ""


Entry = Function | Fixture | Class | Alias

"""Hypothesis strategies for every message in every version, derived from the declarations."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from hypothesis import strategies as st

from headrace.base.ids import ZERO_UUID
from headrace.protocol import messages as message_package
from headrace.protocol.declare import ResolvedField, Struct, fields_of

M = TypeVar("M", bound=Struct)
Leaves = Callable[[ResolvedField], "st.SearchStrategy[Any]"]

ELEMENTS_MAX = 2

_WIRE_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": st.integers(-(2**7), 2**7 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "float64": st.floats(allow_nan=False),
    "uuid": st.binary(min_size=16, max_size=16) | st.just(ZERO_UUID),
    # the long alternatives need a two-byte length in compact form
    "string": st.text(max_size=5) | st.just("\N{GREEK SMALL LETTER OMEGA}" * 80),
    "bytes": st.binary(max_size=5) | st.just(bytes(range(200))),
    "records": st.binary(max_size=5) | st.just(bytes(range(200))),
}


@cache
def every_message() -> tuple[type[Struct], ...]:
    """Return all declared messages: requests, responses, headers, embedded and stored messages."""
    found: dict[str, type[Struct]] = {}
    for module in pkgutil.walk_packages(message_package.__path__, message_package.__name__ + "."):
        for value in vars(importlib.import_module(module.name)).values():
            if isinstance(value, type) and issubclass(value, Struct) and value is not Struct:
                assert found.setdefault(value.__name__, value) is value
    return tuple(found[name] for name in sorted(found))


def every_codec() -> list[tuple[type[Struct], int]]:
    return [(message, version) for message in every_message() for version in message.facts.versions]


def wire_values(field: ResolvedField) -> st.SearchStrategy[Any]:
    assert field.wire
    return _WIRE_VALUES[field.wire.name]


@cache
def messages(message: type[M], version: int, leaves: Leaves = wire_values) -> st.SearchStrategy[M]:
    """Return a strategy for messages that this version can carry; fields of other versions keep their defaults."""
    given = {field.name: _values(field, version, leaves) for field in fields_of(message) if version in field.versions}
    return st.builds(message, **given)


def _values(field: ResolvedField, version: int, leaves: Leaves) -> st.SearchStrategy[Any]:
    one = messages(field.struct, version, leaves) if field.struct else leaves(field)
    if field.is_array:
        one = st.lists(one, max_size=ELEMENTS_MAX)
    if version in field.nullable:
        one = st.none() | one
    return one

"""The result of a decoder: a column with null for each bad record, and the reasons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
from pyspark.sql.types import DataType

from headrace.base.errors import ConfigError, HeadraceError

WHY_CHARACTERS_MAX = 300
NODES_MAX = 10_000  # limit for a schema with all names expanded, which can double at each level
SCHEMA_BYTES_MAX = 4 * 1024 * 1024


class BadSchema(ConfigError):
    """A schema that cannot be parsed, or has no equivalent in Spark."""


class BadRecord(HeadraceError):
    """Why a record cannot be decoded."""


class Decoded(NamedTuple):
    column: pa.Array
    bad: dict[int, str]  # reasons by row


class ValueDecoder(Protocol):
    @property
    def spark_type(self) -> DataType: ...

    def decode(self, column: pa.Array) -> Decoded:
        """Decode a column of binary values; nulls stay null."""


def shortened(why: object) -> str:
    text = " ".join(str(why).split())
    return text if len(text) <= WHY_CHARACTERS_MAX else text[: WHY_CHARACTERS_MAX - 1] + "…"


def decode_rows(column: pa.Array, read: Callable[[bytes], Any], make: Callable[[Sequence[Any]], pa.Array]) -> Decoded:
    """Read each value, where `read` may raise BadRecord, then make a column of all of them."""
    items: list[Any] = []
    positions: list[int | None] = []
    bad: dict[int, str] = {}
    for row, data in enumerate(column.to_pylist()):
        position = None
        if data is not None:
            try:
                item = read(data)
            except BadRecord as error:
                bad[row] = shortened(error)
            else:
                position = len(items)
                items.append(item)
        positions.append(position)
    return spread(items, positions, make, bad)


def spread(
    items: Sequence[Any],
    positions: Sequence[int | None],
    make: Callable[[Sequence[Any]], pa.Array],
    bad: Mapping[int, str],
) -> Decoded:
    """Return a column with an item for each row that has a position, and null for the others."""
    made, unfit = _make_all(items, make)
    found = dict(bad)
    if unfit:
        found.update({row: unfit[position] for row, position in enumerate(positions) if position in unfit})
    if len(items) == len(positions):
        return Decoded(made, found)
    return Decoded(made.take(pa.array(positions, pa.int64())), found)


def _make_all(items: Sequence[Any], make: Callable[[Sequence[Any]], pa.Array]) -> tuple[pa.Array, dict[int, str]]:
    """Make an array of all items; bad items are found by bisection, so that the others are still made together."""
    pieces: list[pa.Array] = []
    bad: dict[int, str] = {}
    kind = make(items[:0]).type
    waiting = [(0, len(items))]
    while waiting:
        first, end = waiting.pop()
        try:
            pieces.append(make(items[first:end]))
        except (BadRecord, pa.ArrowException, ValueError, OverflowError, TypeError) as error:
            if end - first == 1:
                bad[first] = shortened(error)
                pieces.append(pa.nulls(1, kind))
            else:
                middle = (first + end) // 2
                waiting += [(middle, end), (first, middle)]
    return pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces), bad

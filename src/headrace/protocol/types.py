"""The wire types of Kafka's protocol as Python types, and version ranges.

An alias such as Int32 is an `int` to the type checker and carries its wire type for the compiler.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, NamedTuple

from msgspec import Struct

from headrace.base import ids
from headrace.base.stored import Stored

VERSION_MAX = 32767


class Wire(NamedTuple):
    """A wire type. `code` is the struct format of a fixed-width type; types with a length prefix have none."""

    name: str
    code: str = ""
    width: int = 0


Buffer = bytes | bytearray | memoryview

Bool = Annotated[bool, Wire("bool", "?", 1)]
Int8 = Annotated[int, Wire("int8", "b", 1)]
Int16 = Annotated[int, Wire("int16", "h", 2)]
Int32 = Annotated[int, Wire("int32", "i", 4)]
Int64 = Annotated[int, Wire("int64", "q", 8)]
Uint16 = Annotated[int, Wire("uint16", "H", 2)]
Uint32 = Annotated[int, Wire("uint32", "I", 4)]
Float64 = Annotated[float, Wire("float64", "d", 8)]
Uuid = Annotated[ids.Uuid, Wire("uuid", "16s", 16)]
String = Annotated[str, Wire("string")]
Bytes = Annotated[bytes, Wire("bytes")]
Records = Annotated[memoryview | bytes, Wire("records")]
# Records to send may come from several file ranges; received ones are always one memoryview.
RecordRanges = Annotated[memoryview | bytes | Stored | Sequence[memoryview | bytes | Stored], Wire("records")]


class Versions(Struct, frozen=True):
    """A closed range of versions, written as in Kafka: "3-13", "3+" or "4"; empty if low > high."""

    low: int
    high: int

    def __contains__(self, version: int) -> bool:
        return self.low <= version <= self.high

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.low, self.high + 1))

    def __bool__(self) -> bool:
        return self.low <= self.high

    def __and__(self, other: Versions) -> Versions:
        both = Versions(max(self.low, other.low), min(self.high, other.high))
        return both if both else NO_VERSIONS

    def __str__(self) -> str:
        if not self:
            return "none"
        if self.high == VERSION_MAX:
            return f"{self.low}+"
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


NO_VERSIONS = Versions(0, -1)
ALL_VERSIONS = Versions(0, VERSION_MAX)


def parse_versions(text: str) -> Versions:
    if text == "none":
        return NO_VERSIONS
    if text.endswith("+"):
        return Versions(int(text[:-1]), VERSION_MAX)
    low, _, high = text.partition("-")
    return Versions(int(low), int(high or low))

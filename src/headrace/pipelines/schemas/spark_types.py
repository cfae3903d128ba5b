"""Spark's types: parsed from DDL (`id bigint, tags array<string>`) or JSON without a virtual machine, and converted to Arrow's.

All decoded fields are nullable, as in Spark's own file sources: a schema does not guarantee what others have written.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from headrace.pipelines.schemas.columns import BadSchema

TYPE_DEPTH_MAX = 50
DECIMAL_DIGITS_MAX = 38
_TOKEN = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|([\w-]+)|(<>|[<>(),:])|(\S))")
_PLAIN: dict[str, DataType] = {
    "boolean": BooleanType(),
    "tinyint": ByteType(),
    "byte": ByteType(),
    "smallint": ShortType(),
    "short": ShortType(),
    "int": IntegerType(),
    "integer": IntegerType(),
    "bigint": LongType(),
    "long": LongType(),
    "float": FloatType(),
    "real": FloatType(),
    "double": DoubleType(),
    "string": StringType(),
    "varchar": StringType(),
    "char": StringType(),
    "binary": BinaryType(),
    "date": DateType(),
    "timestamp": TimestampType(),
    "timestamp_ltz": TimestampType(),
    "timestamp_ntz": TimestampNTZType(),
}


def arrow_type(kind: DataType) -> pa.DataType:
    """Return exactly the Arrow type that Spark expects from a source."""
    from pyspark.sql.pandas.types import to_arrow_type

    return to_arrow_type(kind, timezone="UTC")


def decimal_type(precision: Any, scale: Any) -> DecimalType:
    if (
        type(precision) is not int
        or type(scale) is not int
        or not 0 < precision <= DECIMAL_DIGITS_MAX
        or not 0 <= scale <= precision
    ):
        raise BadSchema(f"decimal({precision},{scale}): Spark's decimals have 1 to {DECIMAL_DIGITS_MAX} digits")
    return DecimalType(precision, scale)


def struct_type(fields: list[tuple[str, DataType]], path: str) -> StructType:
    if not fields:
        raise BadSchema(f"{path} has no fields")
    seen: set[str] = set()
    for name, _ in fields:
        if name.lower() in seen:
            raise BadSchema(f"{path} has two fields of the name {name}, which Spark cannot distinguish")
        seen.add(name.lower())
    return StructType([StructField(name, kind) for name, kind in fields])


def types_from_json(found: Any) -> DataType:
    """Parse what `StructType.json()` writes."""
    try:
        return nullable(StructType.fromJson(found))
    except (KeyError, TypeError, ValueError, AttributeError, AssertionError, RecursionError) as error:
        raise BadSchema(f"it is no struct of Spark's: {error!r}") from None
    except Exception as error:  # PySpark's errors share no base class with those above
        raise BadSchema(f"it is no struct of Spark's: {error}") from None


def nullable(kind: DataType) -> DataType:
    if isinstance(kind, StructType):
        return struct_type([(field.name, nullable(field.dataType)) for field in kind.fields], "the struct")
    if isinstance(kind, ArrayType):
        return ArrayType(nullable(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(nullable(kind.keyType), nullable(kind.valueType))
    return kind


def types_from_ddl(text: str) -> DataType:
    return _Ddl(text).read()


class _Ddl:
    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        at = 0
        text = text.rstrip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            assert found is not None
            if found[5] is not None:
                raise BadSchema(f"DDL: {found[5]!r} was not expected, at character {found.start(5) + 1}")
            # Nested types may end in >>, so each > is a separate token; only the <> of an empty struct is one.
            self._tokens.append(found[0].strip())
            at = found.end()
        self._tokens.append("")
        self._at = 0

    def read(self) -> DataType:
        if self._peek().lower() == "struct" and self._tokens[self._at + 1] in ("<", "<>"):
            kind = self._type(0)
        else:
            kind = self._fields("", 0)
        self._expect("")
        return kind

    def _peek(self) -> str:
        return self._tokens[self._at]

    def _take(self) -> str:
        token = self._tokens[self._at]
        if token:
            self._at += 1
        return token

    def _expect(self, expected: str) -> None:
        token = self._take()
        if token != expected:
            raise BadSchema(f"DDL: {expected or 'the end'} was expected, but there is {token or 'the end'}")

    def _fields(self, end: str, depth: int) -> StructType:
        fields = []
        while True:
            name = self._name()
            if self._peek() == ":":
                self._take()
            fields.append((name, self._type(depth + 1)))
            self._attributes()
            if self._peek() != ",":
                break
            self._take()
        if end:
            self._expect(end)
        return struct_type(fields, "DDL: the struct")

    def _name(self) -> str:
        token = self._take()
        if token.startswith("`"):
            return token[1:-1].replace("``", "`")
        if not token or not re.fullmatch(r"[\w-]+", token):
            raise BadSchema(f"DDL: a name was expected, but there is {token or 'the end'}")
        return token

    def _attributes(self) -> None:
        while self._peek().lower() in ("not", "comment"):
            if self._take().lower() == "comment":
                while self._peek().startswith(("'", '"')):
                    self._take()
            else:
                self._keyword("null")

    def _keyword(self, expected: str) -> None:
        token = self._take()
        if token.lower() != expected:
            raise BadSchema(f"DDL: {expected} was expected, but there is {token or 'the end'}")

    def _type(self, depth: int) -> DataType:
        if depth > TYPE_DEPTH_MAX:
            raise BadSchema(f"DDL: more than {TYPE_DEPTH_MAX} types within one another")
        name = self._take()
        lower = name.lower()
        if lower == "struct":
            if self._peek() == "<>":
                raise BadSchema("DDL: the struct has no fields")
            self._expect("<")
            return self._fields(">", depth)
        if lower == "array":
            self._expect("<")
            element = self._type(depth + 1)
            self._expect(">")
            return ArrayType(element)
        if lower == "map":
            self._expect("<")
            key = self._type(depth + 1)
            self._expect(",")
            value = self._type(depth + 1)
            self._expect(">")
            return MapType(key, value)
        numbers = self._numbers()
        if lower in ("decimal", "dec", "numeric"):
            return decimal_type(*(numbers + [10, 0][len(numbers) :])[:2])
        if lower not in _PLAIN:
            raise BadSchema(f"DDL: {name or 'the end'} is no type that can be decoded")
        return _PLAIN[lower]

    def _numbers(self) -> list[int]:
        if self._peek() != "(":
            return []
        self._take()
        numbers = []
        while True:
            token = self._take()
            if not token.isascii() or not token.isdigit() or len(token) > 9:
                raise BadSchema(f"DDL: a number was expected, but there is {token or 'the end'}")
            numbers.append(int(token))
            if self._peek() != ",":
                break
            self._take()
        self._expect(")")
        return numbers


def parse_json_text(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadSchema(f"it is no JSON: {error}") from None

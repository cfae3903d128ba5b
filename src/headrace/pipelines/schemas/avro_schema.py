"""Avro schemas: converted to Spark's types as in Spark's own Avro source, and checked to be safe to decode with.

Recursive schemas, and arrays of items that take no bytes, are refused: the former can exhaust the stack of fastavro's decoder, the
latter let a record of ten bytes hold 2^60 items.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, NamedTuple

import fastavro
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from headrace.pipelines.schemas.columns import NODES_MAX, BadRecord, BadSchema, shortened
from headrace.pipelines.schemas.spark_types import arrow_type, decimal_type, parse_json_text, struct_type

DEPTH_MAX = 50
Named = dict[str, Any]
Fix = Callable[[Any], Any]

_PLAIN: dict[str, DataType] = {
    "null": NullType(),
    "boolean": BooleanType(),
    "int": IntegerType(),
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "bytes": BinaryType(),
    "string": StringType(),
}
# Spark's type, and the Arrow type with the unit of the numbers.
_LOGICAL: dict[tuple[str, str], tuple[DataType, pa.DataType]] = {
    ("int", "date"): (DateType(), pa.date32()),
    ("long", "timestamp-millis"): (TimestampType(), pa.timestamp("ms", "UTC")),
    ("long", "timestamp-micros"): (TimestampType(), pa.timestamp("us", "UTC")),
    ("long", "local-timestamp-millis"): (TimestampNTZType(), pa.timestamp("ms")),
    ("long", "local-timestamp-micros"): (TimestampNTZType(), pa.timestamp("us")),
}
_NAMED = ("record", "error", "enum", "fixed")
_PYTHON: dict[str, tuple[type, ...]] = {
    "boolean": (bool,),
    "int": (int,),
    "long": (int,),
    "float": (float,),
    "double": (float,),
    "bytes": (bytes, Decimal),
    "string": (str,),
    "enum": (str,),
    "fixed": (bytes, Decimal),
    "array": (list,),
    "map": (dict,),
    "record": (dict,),
    "error": (dict,),
}


class Shape(NamedTuple):
    spark: DataType
    storage: pa.DataType  # Arrow type of fastavro's values, which are then cast to Spark's
    fix: Fix | None = None  # converts values that Arrow does not accept as they are


class Branch(NamedTuple):
    """One branch of a union with several."""

    name: str
    types: tuple[type, ...]  # Python types of its values
    fields: frozenset[str] | None  # field names of a record
    fix: Fix | None

    def fits(self, value: Any) -> bool:
        return type(value) in self.types and (self.fields is None or self.fields == value.keys())


class AvroSchema(NamedTuple):
    decoding: Any  # the schema without logical types except decimals, so that numbers stay numbers
    shape: Shape | None  # None for a writer's schema
    has_choices: bool  # whether it has a union of several types, whose values come with type names


def read_avro_schema(text: str, references: Sequence[str] = (), *, with_shape: bool) -> AvroSchema:
    """Parse an Avro schema; raise BadSchema that says what is wrong with it."""
    raw = [parse_json_text(one) for one in (*references, text)]
    plain, named = _parsed([_without_logical(one, 0) for one in raw])
    walker = _Walker(named)
    walker.check(plain, ())
    if not with_shape:
        return AvroSchema(plain, None, False)
    _set_defaults(named)
    annotated, annotated_names = _parsed(raw)
    walker = _Walker(annotated_names)
    shape = walker.shape(annotated, "$")
    if walker.has_choices:
        shape = _Walker(annotated_names, values_are_named=True).shape(annotated, "$")
    return AvroSchema(plain, shape, walker.has_choices)


def _parsed(schemas: list[Any]) -> tuple[Any, Named]:
    named: Named = {}
    parsed = None
    try:
        for one in schemas:
            parsed = fastavro.parse_schema(one, named_schemas=named)
    except RecursionError:
        raise BadSchema("Avro: too many types within one another") from None
    except Exception as error:  # fastavro raises its own errors and lets Python's through
        raise BadSchema(f"Avro: {type(error).__name__}: {shortened(error)}") from None
    return parsed, named


def _without_logical(schema: Any, depth: int) -> Any:
    if depth > DEPTH_MAX * 4:  # a record takes three levels of JSON
        raise BadSchema("Avro: too many types within one another")
    if isinstance(schema, list):
        return [_without_logical(one, depth + 1) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _without_logical(value, depth + 1) if name in ("type", "items", "values", "fields") else value
        for name, value in schema.items()
        if name != "logicalType" or value == "decimal"
    }


class _Walker:
    def __init__(self, named: Named, *, values_are_named: bool = False) -> None:
        self._named = named
        self._nodes = 0
        self._values_are_named = values_are_named
        self.has_choices = False

    def _enter(self, schema: Any, inside: tuple[str, ...]) -> tuple[Any, tuple[str, ...]]:
        """Resolve a named type; return it and the names of the types around it."""
        self._nodes += 1
        if self._nodes > NODES_MAX or len(inside) > DEPTH_MAX:
            raise BadSchema(f"Avro: more than {NODES_MAX} types, or {DEPTH_MAX} within one another")
        if isinstance(schema, str) and schema not in _PLAIN:
            schema = self._named[schema]
        if isinstance(schema, dict) and schema.get("type") in _NAMED:
            name = schema["name"]
            if name in inside:
                raise BadSchema(f"Avro: {name} is a part of itself, for which Spark has no type")
            inside = (*inside, name)
        elif isinstance(schema, dict):
            inside = (*inside, "")
        return schema, inside

    def check(self, schema: Any, inside: tuple[str, ...]) -> bool:
        """Check a type; return whether its values can take no bytes at all."""
        schema, inside = self._enter(schema, inside)
        if isinstance(schema, list):
            for one in schema:
                self.check(one, inside)
            return False
        if isinstance(schema, str):
            return schema == "null"
        kind = schema["type"]
        if kind in ("record", "error"):
            empty = [self.check(field["type"], inside) for field in schema["fields"]]
            return all(empty)
        if kind == "array":
            if self.check(schema["items"], inside):
                raise BadSchema("Avro: an array of items that take no bytes")
            return False
        if kind == "map":
            self.check(schema["values"], inside)
            return False
        if kind == "fixed":
            return bool(schema["size"] <= 0)
        return kind == "null" or (isinstance(kind, (dict, list)) and self.check(kind, inside))

    def shape(self, schema: Any, path: str, inside: tuple[str, ...] = ()) -> Shape:
        schema, inside = self._enter(schema, inside)
        if isinstance(schema, list):
            return self._union(schema, path, inside)
        if isinstance(schema, str):
            return _leaf(_PLAIN[schema])
        kind = schema["type"]
        if kind in ("record", "error"):
            return self._record(schema, path, inside)
        if kind == "array":
            item = self.shape(schema["items"], f"{path}[]", inside)
            storage = pa.list_(pa.field("element", item.storage))
            return Shape(ArrayType(item.spark), storage, _fix_items(item.fix))
        if kind == "map":
            value = self.shape(schema["values"], f"{path}.*", inside)
            return Shape(MapType(StringType(), value.spark), pa.map_(pa.utf8(), value.storage), _fix_entries(value.fix))
        logical = schema.get("logicalType")
        if logical == "decimal" and kind in ("bytes", "fixed"):
            return _leaf(decimal_type(schema.get("precision", 0), schema.get("scale", 0)))
        if kind == "enum":
            return _leaf(StringType())
        if kind == "fixed":
            return _leaf(BinaryType())
        if isinstance(kind, str) and (kind, logical) in _LOGICAL:
            return Shape(*_LOGICAL[kind, str(logical)])
        return self.shape(kind, path, inside)

    def _record(self, schema: Any, path: str, inside: tuple[str, ...]) -> Shape:
        fields = [
            (field["name"], self.shape(field["type"], f"{path}.{field['name']}", inside)) for field in schema["fields"]
        ]
        spark = struct_type([(name, shape.spark) for name, shape in fields], f"Avro: {path}")
        storage = pa.struct([pa.field(name, shape.storage) for name, shape in fields])
        fixes = [(name, shape.fix) for name, shape in fields if shape.fix is not None]
        return Shape(spark, storage, _fix_fields(fixes))

    def _union(self, branches: list[Any], path: str, inside: tuple[str, ...]) -> Shape:
        if not branches:
            raise BadSchema(f"Avro: {path} is a union of nothing")
        some = [one for one in branches if _name(one) != "null"]
        names = [_name(one) for one in some]
        if not some:
            return _leaf(NullType())
        if set(names) == {"int", "long"} and len(names) == 2:
            return _leaf(LongType())
        if set(names) == {"float", "double"} and len(names) == 2:
            return _leaf(DoubleType())
        if len(some) == 1:
            only = self.shape(some[0], path, inside)
            return only._replace(fix=_fix_named(only.fix)) if self._values_are_named else only
        if {"int", "long"} <= set(names) or {"float", "double"} <= set(names):
            raise BadSchema(f"Avro: {path} is a union of {', '.join(names)}, whose numbers cannot be distinguished")
        self.has_choices = True
        shapes = [self.shape(one, f"{path}.member{index}", inside) for index, one in enumerate(some)]
        members = [(f"member{index}", shape) for index, shape in enumerate(shapes)]
        return Shape(
            struct_type([(name, shape.spark) for name, shape in members], path),
            pa.struct([pa.field(name, shape.storage) for name, shape in members]),
            _fix_choice([self._branch(one, shape) for one, shape in zip(some, shapes, strict=True)]),
        )

    def _branch(self, schema: Any, shape: Shape) -> Branch:
        name = _name(schema)
        fields = frozenset(shape.spark.names) if isinstance(shape.spark, StructType) else None
        kind = self._named[name]["type"] if name in self._named else name
        return Branch(name, _PYTHON[kind], fields, shape.fix)


def _leaf(kind: DataType) -> Shape:
    return Shape(kind, arrow_type(kind))


def _name(schema: Any) -> str:
    """Return the name of a union's branch, by which values are matched."""
    while isinstance(schema, dict):
        if schema["type"] in _NAMED:
            return str(schema["name"])
        schema = schema["type"]
    return str(schema)


def _fix_items(fix: Fix | None) -> Fix | None:
    return None if fix is None else lambda items: None if items is None else [fix(one) for one in items]


def _fix_entries(fix: Fix | None) -> Fix:
    if fix is None:
        return lambda entries: None if entries is None else list(entries.items())
    return lambda entries: None if entries is None else [(key, fix(value)) for key, value in entries.items()]


def _fix_fields(fixes: list[tuple[str, Fix]]) -> Fix | None:
    if not fixes:
        return None

    def fix(record: Any) -> Any:
        if record is None:
            return None
        fixed = dict(record)  # a copy: fixing is repeated if another record of the column is bad
        for name, one in fixes:
            fixed[name] = one(record[name])
        return fixed

    return fix


def _fix_named(fix: Fix | None) -> Fix:
    """Drop the type name from values; if there are choices anywhere, fastavro adds it to every named type of a union."""

    def unnamed(value: Any) -> Any:
        if type(value) is tuple:
            value = value[1]
        return value if fix is None or value is None else fix(value)

    return unnamed


def _fix_choice(branches: list[Branch]) -> Fix:
    index_of = {branch.name: index for index, branch in enumerate(branches)}
    names = ", ".join(index_of)

    def fix(value: Any) -> Any:
        if value is None:
            return None
        if type(value) is tuple:
            name, value = value
            fitting = [index_of[name]] if name in index_of else []
        else:  # a type without a name, or not written as a union
            fitting = [index for index, branch in enumerate(branches) if branch.fits(value)]
            if len(fitting) > 1 and type(value) is not dict:
                fitting = [index for index in fitting if branches[index].name in _PYTHON]
        if len(fitting) != 1:
            raise BadRecord(f"{type(value).__name__} cannot be assigned to one of {names}")
        one = branches[fitting[0]].fix
        return {f"member{fitting[0]}": value if one is None else one(value)}

    return fix


def _set_defaults(named: Named) -> None:
    """Convert defaults of bytes, which are text in a schema; fastavro would return them unchanged."""
    for one in named.values():
        for field in one.get("fields", ()):
            if "default" in field:
                field["default"] = _default(field["type"], field["default"], named)


def _default(schema: Any, value: Any, named: Named) -> Any:
    if isinstance(schema, list):
        return _default(schema[0], value, named) if schema else value
    if isinstance(schema, str):
        if schema == "bytes" and isinstance(value, str):
            return value.encode("latin-1", "replace")
        return value if schema in _PLAIN else _default(named[schema], value, named)
    kind = schema["type"]
    if kind in ("bytes", "fixed") and isinstance(value, str):
        data = value.encode("latin-1", "replace")
        if schema.get("logicalType") == "decimal":
            return Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-schema.get("scale", 0))
        return data
    if kind == "array" and isinstance(value, list):
        return [_default(schema["items"], one, named) for one in value]
    if kind == "map" and isinstance(value, dict):
        return {key: _default(schema["values"], one, named) for key, one in value.items()}
    if kind in ("record", "error") and isinstance(value, dict):
        return {
            field["name"]: _default(field["type"], value.get(field["name"], field.get("default")), named)
            for field in schema["fields"]
        }
    return value

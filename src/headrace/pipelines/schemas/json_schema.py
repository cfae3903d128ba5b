"""Converts the structure of a JSON Schema to Spark's types. Other constraints are ignored; a missing field is null."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    TimestampType,
)

from headrace.pipelines.schemas.columns import NODES_MAX, BadSchema
from headrace.pipelines.schemas.spark_types import struct_type

DEPTH_MAX = 50
_PLAIN = {"boolean": BooleanType(), "integer": LongType(), "number": DoubleType()}
_STRING_FORMATS = {"date-time": TimestampType(), "date": DateType()}
_CHOICES = ("oneOf", "anyOf")


def types_from_json_schema(schema: Any, documents: Mapping[str, Any] | None = None) -> DataType:
    """Convert a schema; `documents` are others that it may refer to, by name."""
    return _Reader(schema, documents or {}).read(schema, schema, "$", 0)


class _Reader:
    def __init__(self, root: Any, documents: Mapping[str, Any]) -> None:
        self._root = root
        self._documents = documents
        self._nodes = 0

    def read(self, schema: Any, document: Any, path: str, depth: int) -> DataType:
        self._nodes += 1
        if depth > DEPTH_MAX or self._nodes > NODES_MAX:
            raise BadSchema(f"JSON Schema: {path} is too deep, or refers to itself")
        if not isinstance(schema, dict):
            raise BadSchema(f"JSON Schema: {path} has no type")
        if "$ref" in schema:
            found, document = self._referred(schema["$ref"], document, path)
            return self.read(found, document, path, depth + 1)
        kind = self._kind(schema, path)
        if kind is None:
            chosen = self._chosen(schema, path)
            return self.read(chosen, document, path, depth + 1)
        if kind == "object":
            return self._object(schema, document, path, depth)
        if kind == "array":
            if "items" not in schema:
                raise BadSchema(f"JSON Schema: {path} does not say what its items are")
            return ArrayType(self.read(schema["items"], document, f"{path}[]", depth + 1))
        if kind == "string":
            if schema.get("contentEncoding") == "base64":
                return BinaryType()
            named = schema.get("format")
            return _STRING_FORMATS.get(named, StringType()) if isinstance(named, str) else StringType()
        return _PLAIN[kind]

    def _kind(self, schema: dict[str, Any], path: str) -> str | None:
        """Return the only type other than null; None if no type is given."""
        named = schema.get("type")
        kinds = [one for one in (named if isinstance(named, list) else [named]) if one not in (None, "null")]
        if not kinds:
            if "properties" in schema:
                return "object"
            choices = [one for one in schema.get("enum", []) if one is not None]
            return "string" if choices and all(isinstance(one, str) for one in choices) else None
        if set(map(str, kinds)) == {"integer", "number"}:
            return "number"
        if len(kinds) > 1 or kinds[0] not in ("object", "array", "string", *_PLAIN):
            raise BadSchema(f"JSON Schema: {path} is {kinds}, for which there is no single type of Spark's")
        return str(kinds[0])

    def _chosen(self, schema: dict[str, Any], path: str) -> Any:
        for name in _CHOICES:
            given = schema.get(name)
            if isinstance(given, list):
                some = [one for one in given if one != {"type": "null"}]
                if len(some) == 1:
                    return some[0]
                raise BadSchema(f"JSON Schema: {path} can be one of {len(some)}; Spark's columns have one type")
        raise BadSchema(f"JSON Schema: {path} has no type")

    def _object(self, schema: dict[str, Any], document: Any, path: str, depth: int) -> DataType:
        properties = schema.get("properties")
        if properties:
            if not isinstance(properties, dict):
                raise BadSchema(f"JSON Schema: the properties of {path} are no object")
            fields = [(name, self.read(one, document, f"{path}.{name}", depth + 1)) for name, one in properties.items()]
            return struct_type(fields, f"JSON Schema: {path}")
        others = schema.get("additionalProperties")
        if isinstance(others, dict):
            return MapType(StringType(), self.read(others, document, f"{path}.*", depth + 1))
        raise BadSchema(f"JSON Schema: {path} has neither properties nor a type of additionalProperties")

    def _referred(self, reference: Any, document: Any, path: str) -> tuple[Any, Any]:
        name, _, inside = str(reference).partition("#")
        if name:
            if name not in self._documents:
                raise BadSchema(f"JSON Schema: {path} refers to {reference}, which does not exist")
            document = self._documents[name]
        found = document
        for step in inside.strip("/").split("/") if inside.strip("/") else ():
            step = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or step not in found:
                raise BadSchema(f"JSON Schema: {path} refers to {reference}, which does not exist")
            found = found[step]
        return found, document

"""Every declaration compared with Kafka's schema: names, order, types, versions, nullability, tags, defaults."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest
from testkit.strategies import every_message
from tests.protocol.kafka_schemas import load_schemas

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import ResolvedField, Struct, fields_of
from headrace.protocol.types import parse_versions

SCHEMAS = {name: schema for name, schema in load_schemas().items() if schema["validVersions"] != "none"}
MESSAGES = {message.__name__: message for message in every_message()}
ZERO = {"bool": False, "float64": 0.0, "string": "", "bytes": b"", "uuid": ZERO_UUID}


def snake_case(name: str) -> str:
    name = name.replace("KRaft", "Kraft")
    name = re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)
    return re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", name).lower()


def expected_default(field: dict[str, Any], nullable: bool) -> object:
    kind, given = field["type"], field.get("default")
    if given == "null":
        return None
    if kind.startswith("[]"):
        return []
    if kind == "records":
        return None if nullable else b""
    if given is None or given == "":
        return ZERO.get(kind, 0)
    if kind == "bool":
        return str(given).lower() == "true"
    return given if kind == "string" else int(str(given), 0)


def check_struct(
    where: str, struct: type[Struct], fields: list[dict[str, Any]], common: dict[str, Any], reach: set[int]
) -> None:
    """Check a struct in the versions `reach` that have it on the wire: elsewhere its facts have no meaning."""
    alive = [field for field in fields if parse_reach(field, "versions", reach)]
    ours = fields_of(struct)
    assert [field.name for field in ours] == [snake_case(field["name"]) for field in alive], where
    for mine, theirs in zip(ours, alive, strict=True):
        check_field(f"{where}.{mine.name}", mine, theirs, common, reach)


def parse_reach(field: dict[str, Any], fact: str, reach: set[int]) -> set[int]:
    text = field.get(fact) or (field["taggedVersions"] if fact == "versions" else "none")
    return {version for version in reach if version in parse_versions(text)}


def check_field(
    where: str, mine: ResolvedField, theirs: dict[str, Any], common: dict[str, Any], reach: set[int]
) -> None:
    kind = theirs["type"].removeprefix("[]")
    present = parse_reach(theirs, "versions", reach)
    nullable = parse_reach(theirs, "nullableVersions", present)
    assert mine.is_array == theirs["type"].startswith("[]"), where
    assert {version for version in reach if version in mine.versions} == present, where
    assert {version for version in present if version in mine.nullable} == nullable, where
    assert {version for version in present if version in mine.tagged} == parse_reach(
        theirs, "taggedVersions", present
    ), where
    assert mine.tag == theirs.get("tag"), where
    assert mine.flexible == (theirs.get("flexibleVersions") != "none"), where
    if present != reach:
        assert mine.ignorable == theirs.get("ignorable", False), where
    if mine.wire:
        assert mine.wire.name == kind, where
    if mine.struct and not mine.is_array and theirs.get("default") != "null":
        assert mine.default == mine.struct(), where
    else:
        assert mine.default == expected_default(theirs, bool(nullable)), where
    if mine.struct:
        assert mine.struct.__name__ == kind, where
        check_struct(where, mine.struct, theirs.get("fields") or common[kind], common, present)


def test_schemas_are_available_and_match_the_declared_messages() -> None:
    if not SCHEMAS and os.environ.get("CI") != "true":
        pytest.skip("no Kafka schemas: set HEADRACE_SCHEMAS or HEADRACE_KAFKA_LIBS, or run make compat")
    assert SCHEMAS, "CI must hold the declarations against Kafka's schemas"
    assert SCHEMAS.keys() == MESSAGES.keys()


@pytest.mark.parametrize("name", sorted(SCHEMAS))
def test_declarations_match_kafkas_schemas(name: str) -> None:
    schema, message = SCHEMAS[name], MESSAGES[name]
    facts = message.facts
    valid = set(parse_versions(schema["validVersions"]))
    assert facts.kind.value == schema["type"]
    assert facts.api_key == schema.get("apiKey")
    assert set(facts.versions) == valid
    assert valid & {*parse_versions(schema.get("flexibleVersions", "none")) & facts.versions} == {
        *facts.flexible & facts.versions
    }
    assert facts.listeners == set(schema.get("listeners", ()))
    assert facts.latest_version_unstable == schema.get("latestVersionUnstable", False)
    common = {struct["name"]: struct["fields"] for struct in schema.get("commonStructs", ())}
    check_struct(name, message, schema["fields"], common, valid)

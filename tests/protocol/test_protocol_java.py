"""Kafka's own classes read our bytes and write the same bytes: the only oracle that knows the stored records."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from random import Random
from typing import Any

import pytest
from testkit.kafka_peer import libraries, require_kafka
from testkit.strategies import every_codec

from headrace.base.ids import ZERO_UUID
from headrace.protocol.compiler import codec
from headrace.protocol.declare import ResolvedField, Struct, fields_of

SEED = 932
SAMPLES = 8
BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
TEXTS = ("", "a", "topic-\N{LATIN SMALL LETTER E WITH ACUTE}", "x" * 200, "\N{MUSICAL SYMBOL G CLEF}")


def leaf(field: ResolvedField, random_source: Random) -> Any:
    assert field.wire
    name = field.wire.name
    if name in BITS:
        limit = 2 ** (BITS[name] - 1)
        return random_source.choice(
            (0, -1, field.default if isinstance(field.default, int) else 1, random_source.randrange(-limit, limit))
        )
    if name in ("uint16", "uint32"):
        return random_source.randrange(2 ** int(name.removeprefix("uint")))
    if name == "bool":
        return random_source.random() < 0.5
    if name == "float64":
        return random_source.uniform(-1e9, 1e9)
    if name == "uuid":
        return random_source.choice((ZERO_UUID, random_source.randbytes(16)))
    return (
        random_source.choice(TEXTS) if name == "string" else random_source.randbytes(random_source.choice((0, 1, 200)))
    )


def sample(struct: type[Struct], version: int, random_source: Random) -> Struct:
    values: dict[str, Any] = {}
    for field in fields_of(struct):
        if version not in field.versions or (field.tag is not None and random_source.random() < 0.4):
            continue
        if version in field.nullable and random_source.random() < 0.25:
            values[field.name] = None
        elif field.is_array:
            values[field.name] = [element(field, version, random_source) for _ in range(random_source.randrange(4))]
        else:
            values[field.name] = element(field, version, random_source)
    return struct(**values)


def element(field: ResolvedField, version: int, random_source: Random) -> Any:
    return sample(field.struct, version, random_source) if field.struct else leaf(field, random_source)


@pytest.mark.java
def test_kafkas_java_classes_write_the_same_bytes() -> None:
    require_kafka()
    jars, java = sorted(libraries().rglob("*.jar")), shutil.which("java")
    assert java and jars
    random_source = Random(SEED)
    lines = [
        f"{message.__name__} {version} {codec(message, version).encode(sample(message, version, random_source)).hex()}"
        for message, version in every_codec()
        for _ in range(SAMPLES)
    ]
    completed = subprocess.run(
        [java, "-cp", os.pathsep.join(map(str, jars)), str(Path(__file__).with_name("KafkaClasses.java"))],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    again = completed.stdout.splitlines()
    assert len(again) == len(lines)
    wrong = [(line[:200], got[:200]) for line, got in zip(lines, again, strict=True) if not line.endswith(" " + got)]
    assert not wrong, f"{len(wrong)} of {len(lines)} differ, seed {SEED}: {wrong[:5]}"

"""Kafka's own message schemas, from the first available source: the reference for our declarations."""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SHARED = Path(__file__).resolve().parent / "../../../shared/kafka"
JARS = Path("~/.cache/headrace/kafka-4.3.1").expanduser()
SCHEMA_IN_JAR = re.compile(r"(common/)?(message|metadata)/\w+\.json")
# Part of Kafka Streams' client protocol, not of the brokers' protocol.
FOREIGN = {"SubscriptionInfoData"}


def load_schemas() -> dict[str, dict[str, Any]]:
    """Return the schemas by message name, or nothing if no source has them."""
    named = os.environ.get("HEADRACE_SCHEMAS")
    if named:
        texts = _from_directory(Path(named))
    elif SHARED.is_dir():
        texts = _from_directory(SHARED)
    else:
        texts = _from_jars(Path(os.environ.get("HEADRACE_KAFKA_LIBS", JARS)))
    return {schema["name"]: schema for schema in map(_parse, texts)}


def _from_directory(root: Path) -> Iterator[str]:
    for folder in ("messages", "records"):
        for path in sorted((root / folder).rglob("*.json")):
            yield path.read_text(encoding="utf-8")


def _from_jars(root: Path) -> Iterator[str]:
    for path in sorted(root.rglob("kafka-*.jar")):
        with zipfile.ZipFile(path) as jar:
            for name in jar.namelist():
                if SCHEMA_IN_JAR.fullmatch(name) and Path(name).stem not in FOREIGN:
                    yield jar.read(name).decode("utf-8")


def _parse(text: str) -> dict[str, Any]:
    """Parse JSON with comments to the end of the line; no text in a schema has two slashes after a space."""
    without_comments = re.sub(r"(?m)(^|[\s,\[{}\]])//.*$", r"\1", text)
    schema: dict[str, Any] = json.loads(without_comments)
    return schema

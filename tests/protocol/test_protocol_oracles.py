"""Two other implementations read our bytes, find the same values in them and write the same bytes."""

from __future__ import annotations

import importlib
import io
import pkgutil
import warnings
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode
from kio.schema.index import schema_name_map
from kio.serial import entity_reader, entity_writer
from testkit.strategies import every_codec, messages, wire_values

from headrace.base.ids import ZERO_UUID
from headrace.protocol.compiler import codec
from headrace.protocol.declare import Kind, ResolvedField, Struct, fields_of

MILLISECOND = timedelta(milliseconds=1)
EPOCH = datetime.fromisoformat("1970-01-01T00:00:00+00:00")
TIMES = st.integers(0, 2**41)
KIO_TIMES = ("_ms", "timestamp", "lifetime", "time_period", "timeout")

Pair = tuple[type[Struct], int]
Foreign = tuple[Callable[[bytes], Any], Callable[[Any], bytes]]


def ours(value: Any, version: int) -> Any:
    """Return the values by position: the oracles spell some names differently."""
    if isinstance(value, Struct):
        return [
            ours(getattr(value, field.name), version) for field in fields_of(type(value)) if version in field.versions
        ]
    if isinstance(value, list):
        return [ours(element, version) for element in value]
    return None if value == ZERO_UUID else value


def theirs(value: Any, version: int) -> Any:
    if hasattr(value, "_struct"):
        return [theirs_of(value, f.name, version) for f in value._struct._fields if f.for_version_q(version)]
    if is_dataclass(value):
        return [theirs(getattr(value, field.name), version) for field in fields(value)]
    if isinstance(value, list | tuple):
        return [theirs(element, version) for element in value]
    if isinstance(value, UUID):
        return theirs(value.bytes, version)
    if isinstance(value, timedelta):
        return value // MILLISECOND
    if isinstance(value, datetime):
        return (value - EPOCH) // MILLISECOND
    if isinstance(value, memoryview):
        return bytes(value)
    if isinstance(value, Enum):
        return value.value
    return None if value == ZERO_UUID else value


def theirs_of(value: Any, name: str, version: int) -> Any:
    found = getattr(value, name)
    if name == "authorized_operations":  # kafka-python makes it a set of bits, or None if only the sign bit is set
        return (sum(1 << bit for bit in ({31} if found is None else found)) ^ 2**31) - 2**31
    return theirs(found, version)


def find_kafka_python() -> dict[str, Any]:
    found: dict[str, Any] = {}

    def collect(base: type[Any]) -> None:
        for known in base.__subclasses__():
            if known.__dict__.get("_json"):
                found[known.__name__] = known
            collect(known)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python loads its schemas with a deprecated function
        package = importlib.import_module("kafka.protocol")
        for module in pkgutil.walk_packages(package.__path__, "kafka.protocol."):
            if ".old" not in module.name and "generate" not in module.name:
                importlib.import_module(module.name)
    collect(importlib.import_module("kafka.protocol.api_message").ApiMessage)
    collect(importlib.import_module("kafka.protocol.api_data").ApiData)
    return found


def find_kio() -> dict[tuple[str, int], str]:
    return {
        (path.split(":")[1], version): path
        for versions in schema_name_map.values()
        for version, kinds in versions.items()
        for path in kinds.values()
    }


KAFKA_PYTHON = find_kafka_python()
KIO = find_kio()
KAFKA_PYTHON_PAIRS = [
    (message, version)
    for message, version in every_codec()
    if message.__name__ in KAFKA_PYTHON and version <= KAFKA_PYTHON[message.__name__].max_version
]
KIO_PAIRS = [(message, version) for message, version in every_codec() if (message.__name__, version) in KIO]


def kafka_python(message: type[Struct], version: int) -> Foreign:
    known = KAFKA_PYTHON[message.__name__]
    # The base class's methods: some subclasses add client behaviour, such as falling back to v0.
    base = importlib.import_module(
        "kafka.protocol.api_message"
        if message.facts.kind in (Kind.REQUEST, Kind.RESPONSE)
        else "kafka.protocol.api_data"
    )
    plain = base.ApiMessage if hasattr(base, "ApiMessage") else base.ApiData
    decode, encode = plain.decode.__func__, plain.encode
    return lambda data: decode(known, data, version=version, header=False), lambda value: bytes(
        encode(value, header=False)
    )


def kio(message: type[Struct], version: int) -> Foreign:
    entity = pkgutil.resolve_name(KIO[message.__name__, version])
    read, write = entity_reader(entity), entity_writer(entity)

    def encode(value: Any) -> bytes:
        out = io.BytesIO()
        write(out, value)
        return out.getvalue()

    return lambda data: read(data, 0)[0], encode


def kio_values(field: ResolvedField) -> st.SearchStrategy[Any]:
    """Return valid values only: kio interprets some integers (errors, times) and refuses those without a meaning."""
    if field.name.endswith("error_code"):
        return st.sampled_from([code.value for code in ErrorCode])
    if field.wire and field.wire.name == "int64" and field.name.endswith(KIO_TIMES):
        return TIMES
    return wire_values(field)


def check(pair: Pair, foreign: Foreign, value: Struct) -> None:
    message, version = pair
    decode, encode = foreign
    encoded = codec(message, version).encode(value)
    understood = decode(encoded)
    assert theirs(understood, version) == ours(value, version)
    again = encode(understood)
    assert codec(message, version).decode(again) == value
    assert again == encoded


def pair_ids(pairs: list[Pair]) -> list[str]:
    return [f"{message.__name__}-{version}" for message, version in pairs]


@pytest.mark.parametrize("pair", KAFKA_PYTHON_PAIRS, ids=pair_ids(KAFKA_PYTHON_PAIRS))
@settings(deadline=None, max_examples=3, database=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_kafka_python_reads_the_same_values_and_writes_the_same_bytes(pair: Pair, data: st.DataObject) -> None:
    check(pair, kafka_python(*pair), data.draw(messages(*pair)))


@pytest.mark.parametrize("pair", KIO_PAIRS, ids=pair_ids(KIO_PAIRS))
@settings(deadline=None, max_examples=3, database=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_kio_reads_the_same_values_and_writes_the_same_bytes(pair: Pair, data: st.DataObject) -> None:
    check(pair, kio(*pair), data.draw(messages(*pair, kio_values)))


def test_oracles_cover_most_message_versions() -> None:
    assert len(KAFKA_PYTHON_PAIRS) >= 400
    assert len(KIO_PAIRS) >= 550

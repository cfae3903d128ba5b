"""Stored messages: metadata records and coordinator records, which begin with their type and version.

Records of an unknown type are decoded to None, so that loading a log skips what a newer version wrote.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from headrace.protocol.compiler import codec
from headrace.protocol.declare import Kind, Struct
from headrace.protocol.errors import DecodeError, EncodeError, UnsupportedVersion
from headrace.protocol.messages.stored import (
    consumer_groups,
    metadata_brokers,
    metadata_cluster,
    metadata_security,
    metadata_topics,
    offsets,
    remote_log,
    share_groups,
    share_state,
    streams_groups,
    transactions,
)
from headrace.protocol.primitives import read_uvarint, uvarint
from headrace.protocol.types import Buffer

FRAME_VERSION = 1
_INT16 = struct.Struct(">h")


def _by_key(modules: Iterable[object], kind: Kind) -> dict[int, type[Struct]]:
    found: dict[int, type[Struct]] = {}
    for module in modules:
        for message in vars(module).values():
            if isinstance(message, type) and issubclass(message, Struct) and message is not Struct:
                facts = message.facts
                if facts.kind is kind:
                    assert facts.api_key is not None
                    assert facts.api_key not in found, f"two records with key {facts.api_key}"
                    found[facts.api_key] = message
    return found


METADATA_RECORDS = _by_key(
    (metadata_brokers, metadata_topics, metadata_security, metadata_cluster), Kind.METADATA_RECORD
)
REMOTE_LOG_RECORDS = _by_key((remote_log,), Kind.METADATA_RECORD)


def encode_framed(record: Struct, version: int) -> bytes:
    """Encode the value of a record in the metadata log or in __remote_log_metadata."""
    facts = record.facts
    if facts.kind is not Kind.METADATA_RECORD or facts.api_key is None:
        raise EncodeError(f"{type(record).__name__} is not a metadata record")
    body = codec(type(record), version).encode(record)
    return b"".join((uvarint(FRAME_VERSION), uvarint(facts.api_key), uvarint(version), body))


def decode_framed(value: Buffer, records: dict[int, type[Struct]] = METADATA_RECORDS) -> tuple[Struct | None, int]:
    """Return the record, or None if its type is unknown, and its version.

    Raise DecodeError for an unknown version, because a partly decoded record would be wrong.
    """
    try:
        frame, position = read_uvarint(value, 0)
        key, position = read_uvarint(value, position)
        version, position = read_uvarint(value, position)
    except (IndexError, ValueError) as error:
        raise DecodeError(f"metadata record: {error}") from error
    if frame != FRAME_VERSION:
        raise DecodeError(f"metadata record: frame version {frame}, not {FRAME_VERSION}")
    record = records.get(key)
    if record is None:
        return None, version
    try:
        return codec(record, version).decode(value, position), version
    except UnsupportedVersion as error:
        raise DecodeError(str(error)) from error


class CoordinatorRecords:
    """The record types of one internal topic; keys begin with an int16 type, values with an int16 version."""

    def __init__(self, *modules: object) -> None:
        self.keys = _by_key(modules, Kind.COORDINATOR_KEY)
        self.values = _by_key(modules, Kind.COORDINATOR_VALUE)
        assert self.keys.keys() == self.values.keys()

    def encode_key(self, key: Struct) -> bytes:
        facts = key.facts
        if facts.api_key is None or self.keys.get(facts.api_key) is not type(key):
            raise EncodeError(f"{type(key).__name__} is not a key of this topic")
        return _INT16.pack(facts.api_key) + codec(type(key), facts.versions.high).encode(key)

    def encode_value(self, value: Struct, version: int) -> bytes:
        facts = value.facts
        if facts.api_key is None or self.values.get(facts.api_key) is not type(value):
            raise EncodeError(f"{type(value).__name__} is not a value of this topic")
        return _INT16.pack(version) + codec(type(value), version).encode(value)

    def decode_key(self, data: Buffer) -> Struct | None:
        key = self.keys.get(_prefix(data))
        return None if key is None else codec(key, key.facts.versions.high).decode(data, 2)

    def decode_value(self, key: Struct, data: Buffer) -> tuple[Struct, int]:
        """Return the value that belongs to this key, and its version. Raise DecodeError for an unknown version."""
        version = _prefix(data)
        assert key.facts.api_key is not None
        value = self.values[key.facts.api_key]
        try:
            return codec(value, version).decode(data, 2), version
        except UnsupportedVersion as error:
            raise DecodeError(str(error)) from error


def _prefix(data: Buffer) -> int:
    try:
        number: int = _INT16.unpack_from(data)[0]
    except struct.error as error:
        raise DecodeError(f"coordinator record: {error}") from error
    return number


GROUP_RECORDS = CoordinatorRecords(offsets, consumer_groups, share_groups, streams_groups)
SHARE_RECORDS = CoordinatorRecords(share_state)
TRANSACTION_RECORDS = CoordinatorRecords(transactions)

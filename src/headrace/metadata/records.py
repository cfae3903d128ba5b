"""Encoding of metadata records: the record versions of each metadata.version level, and records of unknown types."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from headrace.base.errors import CorruptData
from headrace.protocol.errors import DecodeError
from headrace.protocol.messages.stored.metadata_brokers import BrokerRegistrationChangeRecord, RegisterBrokerRecord
from headrace.protocol.messages.stored.metadata_topics import PartitionChangeRecord, PartitionRecord
from headrace.protocol.stored import decode_framed, encode_framed

# Levels of metadata.version that change which records we write, and how.
METADATA_VERSION_MIN, METADATA_VERSION_MAX = 7, 30  # 3.3-IV3, 4.3-IV0
NO_BUMP_LEVEL = 12  # 3.6-IV0: the leader epoch no longer increases when the ISR shrinks
CONTROLLERS_LEVEL = 15  # 3.7-IV0: controllers register
DIRECTORIES_LEVEL = 17  # 3.7-IV2: replicas have directories
ELR_LEVEL = 23  # 4.0-IV1: eligible leader replicas
CORDONED_LEVEL = 30  # 4.3-IV0: log dirs can be cordoned

# Record -> (lowest level, version), newest first; all other records have only version 0.
_VERSIONS: dict[type[Any], tuple[tuple[int, int], ...]] = {
    RegisterBrokerRecord: ((CORDONED_LEVEL, 4), (DIRECTORIES_LEVEL, 3), (8, 2), (0, 1)),
    PartitionRecord: ((ELR_LEVEL, 2), (DIRECTORIES_LEVEL, 1), (0, 0)),
    PartitionChangeRecord: ((ELR_LEVEL, 2), (DIRECTORIES_LEVEL, 1), (0, 0)),
    BrokerRegistrationChangeRecord: ((CORDONED_LEVEL, 3), (DIRECTORIES_LEVEL, 2), (0, 1)),
}
_ONLY_VERSION = ((0, 0),)


class UnknownRecord(Struct, frozen=True):
    """A record of a type that a later version introduced, kept as bytes."""

    value: bytes


def encode_record(record: Any, metadata_version: int = METADATA_VERSION_MAX) -> bytes:
    if type(record) is UnknownRecord:
        return record.value
    versions = _VERSIONS.get(type(record), _ONLY_VERSION)
    return encode_framed(record, next(version for level, version in versions if level <= metadata_version))


def decode_record(value: bytes) -> Any:
    """Decode a record; return an UnknownRecord if this version does not know its type."""
    try:
        record = decode_framed(value)[0]
    except DecodeError as error:
        raise CorruptData(f"a record of the metadata log cannot be read: {error}") from error
    return UnknownRecord(bytes(value)) if record is None else record

"""A record of __consumer_offsets as a value: key, value and the version the value is written in."""

from __future__ import annotations

from typing import Any, NamedTuple

from headrace.base.errors import CorruptData
from headrace.protocol.declare import Struct
from headrace.protocol.errors import DecodeError
from headrace.protocol.stored import GROUP_RECORDS


class GroupRecord(NamedTuple):
    key: Struct
    value: Any  # None: a tombstone
    version: int = 0  # of the value


def encode_group_record(record: GroupRecord) -> tuple[bytes, bytes | None]:
    value = None if record.value is None else GROUP_RECORDS.encode_value(record.value, record.version)
    return GROUP_RECORDS.encode_key(record.key), value


def decode_group_record(key: bytes | None, value: bytes | None) -> GroupRecord | None:
    """None for a type that is not known here: what a newer version wrote is skipped (KIP-915). CorruptData for anything else."""
    if key is None:
        raise CorruptData("a record of __consumer_offsets has no key")
    try:
        found = GROUP_RECORDS.decode_key(key)
        if found is None:
            return None
        if value is None:
            return GroupRecord(found, None)
        decoded, version = GROUP_RECORDS.decode_value(found, value)
        return GroupRecord(found, decoded, version)
    except DecodeError as error:
        raise CorruptData(f"a record of __consumer_offsets cannot be read: {error}") from error

"""Metadata records as values of the metadata log: which version of each is written, and what unknown ones become."""

from __future__ import annotations

from typing import Any

from headrace.base.errors import CorruptData
from headrace.protocol.errors import DecodeError
from headrace.protocol.messages.stored.metadata_brokers import BrokerRegistrationChangeRecord, RegisterBrokerRecord
from headrace.protocol.messages.stored.metadata_topics import PartitionChangeRecord, PartitionRecord
from headrace.protocol.stored import decode_framed, encode_framed

# What metadata.version 4.3-IV0 writes; all others have only version 0.
_VERSIONS: dict[type[Any], int] = {
    RegisterBrokerRecord: 4,
    PartitionRecord: 2,
    PartitionChangeRecord: 2,
    BrokerRegistrationChangeRecord: 1,
}


def encode_record(record: Any) -> bytes:
    return encode_framed(record, _VERSIONS.get(type(record), 0))


def decode_record(value: bytes) -> Any:
    """None for a type of record that this version does not know."""
    try:
        return decode_framed(value)[0]
    except DecodeError as error:
        raise CorruptData(f"a record of the metadata log cannot be read: {error}") from error

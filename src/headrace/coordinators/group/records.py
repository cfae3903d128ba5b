"""Records of __consumer_offsets: key, value, version of the value, and the producer of its transaction, if any.

A transaction ends with a separate kind of record, a MarkerRecord.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct as Layout
from struct import error as LayoutError
from typing import Any

from headrace.base.errors import CorruptData
from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Struct
from headrace.protocol.errors import DecodeError
from headrace.protocol.messages.stored.offsets import OffsetCommitKey, OffsetCommitValue
from headrace.protocol.stored import GROUP_RECORDS
from headrace.statemachine.transactional import MarkerRecord, OfProducer

NAME_CACHE_SIZE = 4096  # cache entries: decoded pairs of group and topic
KEY_BYTES_MAX = 1024  # longer keys are decoded generically and not cached

_OFFSET_KEY = b"\x00\x01"
_LENGTH = Layout(">h")
_PARTITION = Layout(">i")
# The value of a committed offset without metadata: version, offset, leader epoch, length of the metadata, timestamp; in version 4
# also the number of tagged fields and, if there is one, its tag and size, and the topic id.
_VERSION_3 = Layout(">hqihq")
_VERSION_4 = Layout(">hqiBqB")
_VERSION_4_WITH_ID = Layout(">hqiBqBH16s")
_NO_METADATA = 1  # the encoded length of an empty compact string
_ID_TAG = 0x0010  # tag 0, 16 bytes
_NO_EXPIRY = -1


class GroupRecord(OfProducer, frozen=True):
    key: Struct
    value: Any  # None for a tombstone
    version: int = 0  # version of the value


AnyRecord = GroupRecord | MarkerRecord


def encode_group_record(record: GroupRecord) -> tuple[bytes, bytes | None]:
    if type(record.key) is OffsetCommitKey and record.version == 4 and record.value and not record.value.metadata:
        return _encode_committed_offset(record.key, record.value)
    return encode_any(record)


def encode_any(record: GroupRecord) -> tuple[bytes, bytes | None]:
    """Encode a record of any type from the declarations of its messages."""
    value = None if record.value is None else GROUP_RECORDS.encode_value(record.value, record.version)
    return GROUP_RECORDS.encode_key(record.key), value


def decode_group_record(key: bytes | None, value: bytes | None) -> GroupRecord | None:
    """Decode a record, or return None for an unknown type, which a newer version may have written (KIP-915).

    Raise CorruptData if the record cannot be read.
    """
    if value is not None and key is not None and key[:2] == _OFFSET_KEY:
        committed = _committed_offset(key, value)
        if committed is not None:
            return committed
    return decode_any(key, value)


def decode_any(key: bytes | None, value: bytes | None) -> GroupRecord | None:
    """Decode a record of any type from the declarations of its messages."""
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


# --- fast path for the usual committed offset, several times faster: a shard may have a million of them


def _encode_committed_offset(key: OffsetCommitKey, value: OffsetCommitValue) -> tuple[bytes, bytes]:
    head = (4, value.offset, value.leader_epoch, _NO_METADATA, value.commit_timestamp)
    if value.topic_id == ZERO_UUID:
        encoded = _VERSION_4.pack(*head, 0)
    else:
        encoded = _VERSION_4_WITH_ID.pack(*head, 1, _ID_TAG, value.topic_id)
    group, topic = key.group.encode(), key.topic.encode()
    named = b"".join((_OFFSET_KEY, _LENGTH.pack(len(group)), group, _LENGTH.pack(len(topic)), topic))
    return named + _PARTITION.pack(key.partition), encoded


def _committed_offset(key: bytes, value: bytes) -> GroupRecord | None:
    """Decode the usual form of a committed offset, or return None for any other record."""
    topic_id = ZERO_UUID
    if len(value) == _VERSION_4_WITH_ID.size:
        version, offset, epoch, metadata, timestamp, tags, tag, topic_id = _VERSION_4_WITH_ID.unpack(value)
        plain = version == 4 and metadata == _NO_METADATA and tags == 1 and tag == _ID_TAG
    elif len(value) != _VERSION_4.size:
        return None
    elif value[1] == 4:
        version, offset, epoch, metadata, timestamp, tags = _VERSION_4.unpack(value)
        plain = version == 4 and metadata == _NO_METADATA and tags == 0
    else:
        version, offset, epoch, metadata, timestamp = _VERSION_3.unpack(value)
        plain = version == 3 and metadata == 0
    if not plain or len(key) > KEY_BYTES_MAX or (names := _names(key[:-4])) is None:
        return None
    committed = OffsetCommitValue(offset, epoch, "", timestamp, _NO_EXPIRY, topic_id)
    return GroupRecord(OffsetCommitKey(*names, *_PARTITION.unpack(key[-4:])), committed, version)


@lru_cache(NAME_CACHE_SIZE)
def _names(key: bytes) -> tuple[str, str] | None:
    """Return group and topic from an offset key without its partition, or None if the key is malformed."""
    try:
        topic = 4 + _LENGTH.unpack_from(key, 2)[0]
        end = topic + 2 + _LENGTH.unpack_from(key, topic)[0]
        if topic < 4 or end < topic + 2 or end != len(key):
            return None
        return key[4:topic].decode(), key[topic + 2 :].decode()
    except (LayoutError, UnicodeDecodeError):
        return None

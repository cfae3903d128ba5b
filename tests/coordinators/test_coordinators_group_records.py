"""Committed offsets have their own decoder, which must agree with the general one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.base.errors import CorruptData
from headrace.base.ids import Uuid
from headrace.coordinators.group.records import (
    GroupRecord,
    _committed_offset,
    decode_any,
    decode_group_record,
    encode_any,
    encode_group_record,
)
from headrace.protocol.messages.stored.offsets import OffsetCommitKey, OffsetCommitValue

INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
NAMES = st.one_of(st.sampled_from(["", "g", "topic"]), st.text(max_size=20).filter(lambda text: text.isprintable()))
COMMITTED = st.builds(
    lambda group, topic, partition, value, version: GroupRecord(
        OffsetCommitKey(group, topic, partition), value, version
    ),
    NAMES,
    NAMES,
    INT32,
    st.builds(
        OffsetCommitValue,
        offset=INT64,
        leader_epoch=INT32,
        metadata=st.one_of(st.just(""), st.text(max_size=200)),
        commit_timestamp=INT64,
        topic_id=st.one_of(st.just(bytes(16)), st.binary(min_size=16, max_size=16)),
    ),
    st.integers(0, 4),
)


def decoded_or_error(decode: Callable[..., Any], key: bytes, value: bytes | None) -> GroupRecord | str | None:
    try:
        return decode(key, value)
    except CorruptData as error:
        return str(error)


@settings(deadline=None, max_examples=200)
@given(COMMITTED)
def test_committed_offsets_decode_like_the_general_decoder(record: GroupRecord) -> None:
    key, value = encode_group_record(record)
    assert (key, value) == encode_any(record)
    found = decode_group_record(key, value)
    assert found == decode_any(key, value)
    assert found is not None
    assert found.key == record.key
    assert found.value.offset == record.value.offset


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("topic_id", [Uuid(bytes(16)), Uuid(bytes(range(16)))])
def test_common_committed_offsets_use_the_special_decoder(version: int, topic_id: Uuid) -> None:
    value = OffsetCommitValue(offset=7, leader_epoch=2, commit_timestamp=1_700_000_000_000, topic_id=topic_id)
    encoded_key, encoded = encode_group_record(GroupRecord(OffsetCommitKey("group", "topic", 3), value, version))
    assert encoded is not None
    found = _committed_offset(encoded_key, encoded)
    assert found is not None
    assert found == decode_any(encoded_key, encoded)
    assert found.value.topic_id == (topic_id if version == 4 else bytes(16))


@settings(deadline=None, max_examples=300)
@given(COMMITTED, st.data())
def test_damaged_committed_offsets_decode_like_the_general_decoder(record: GroupRecord, data: st.DataObject) -> None:
    key, value = encode_group_record(record)
    assert value is not None
    parts = [bytearray(key), bytearray(value)]
    broken = parts[data.draw(st.integers(0, 1), "which")]
    at = data.draw(st.integers(0, len(broken) - 1), "at")
    if data.draw(st.booleans(), "cut"):
        del broken[at:]
    else:
        broken[at] = data.draw(st.integers(0, 255), "byte")
    key, value = bytes(parts[0]), bytes(parts[1])
    assert decoded_or_error(decode_group_record, key, value) == decoded_or_error(decode_any, key, value)


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=40), st.one_of(st.none(), st.binary(max_size=50)))
@example(b"", None)
@example(b"\x00\x01", b"\x00\x04" + bytes(22))
@example(b"\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00", b"\x00\x04" + bytes(12) + b"\x01" + bytes(9))
@example(b"\x00\x01\xff\xff\x00\x00\x00\x00\x00\x00", b"\x00\x03" + bytes(22))
def test_garbage_decodes_like_the_general_decoder(key: bytes, value: bytes | None) -> None:
    assert decoded_or_error(decode_group_record, key, value) == decoded_or_error(decode_any, key, value)

"""Headers, frames, the API table and the framing of stored records."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.base.ids import ZERO_UUID
from headrace.protocol.apis import APIS, FLEXIBLE_FROM, Api, ApiKey, apis_of
from headrace.protocol.compiler import codec
from headrace.protocol.declare import Struct
from headrace.protocol.errors import DecodeError, EncodeError, FrameError
from headrace.protocol.framing import FrameSplitter, framed
from headrace.protocol.headers import read_request_header, read_response_header, request_header, response_header
from headrace.protocol.messages.fetch import FetchRequest
from headrace.protocol.messages.headers import RequestHeader, ResponseHeader
from headrace.protocol.messages.stored.metadata_topics import PartitionRecord, TopicRecord
from headrace.protocol.messages.stored.offsets import OffsetCommitKey, OffsetCommitValue
from headrace.protocol.messages.stored.remote_log import RemotePartitionDeleteMetadataRecord
from headrace.protocol.messages.stored.transactions import TransactionLogKey, TransactionLogValue
from headrace.protocol.primitives import read_uvarint, uvarint
from headrace.protocol.stored import (
    GROUP_RECORDS,
    METADATA_RECORDS,
    REMOTE_LOG_RECORDS,
    SHARE_RECORDS,
    TRANSACTION_RECORDS,
    decode_framed,
    encode_framed,
)


def test_the_api_table_matches_kafkas_keys_and_versions() -> None:
    assert len(APIS) == len(ApiKey) == 89
    assert not {4, 5, 6, 7} & APIS.keys()
    assert FLEXIBLE_FROM[ApiKey.FETCH] == 12
    assert FLEXIBLE_FROM[ApiKey.SASL_HANDSHAKE] > 32767
    assert APIS[ApiKey.INIT_PRODUCER_ID].stable_version_max == 5
    assert APIS[ApiKey.PRODUCE].stable_version_max == 13
    assert len(apis_of("broker")) == 77
    assert len(apis_of("controller")) == 41
    for key, api in APIS.items():
        assert api.request.__name__ == "".join(word.title() for word in ApiKey(key).name.split("_")) + "Request"


@given(
    api=st.sampled_from(sorted(APIS.values(), key=lambda api: api.key)),
    correlation_id=st.integers(-(2**31), 2**31 - 1),
    client_id=st.none() | st.text(max_size=200),
)
@settings(deadline=None, max_examples=100)
def test_request_headers_match_their_declaration(api: Api, correlation_id: int, client_id: str | None) -> None:
    key = api.key
    for version in api.versions:
        head = request_header(key, version, correlation_id, client_id)
        declared = codec(RequestHeader, 2 if version >= FLEXIBLE_FROM[key] else 1)
        assert declared.encode(RequestHeader(key, version, correlation_id, client_id)) == head
        assert read_request_header(b"\xff" + head + b"body", 1) == (
            key,
            version,
            correlation_id,
            client_id,
            1 + len(head),
        )


def test_request_headers_of_unknown_versions_are_read() -> None:
    head = request_header(ApiKey.API_VERSIONS, 99, 5, "c")
    assert read_request_header(head) == (18, 99, 5, "c", len(head))
    assert read_request_header(head[:-1] + b"\x01\x00\x02xy") == (18, 99, 5, "c", len(head) + 4)


@pytest.mark.parametrize("data", [b"", b"\x00\x01\x00\x0c", b"\x00\x01\x00\x0c\x00\x00\x00\x00\x00\x05abc", bytes(9)])
def test_truncated_request_headers_raise_decode_error(data: bytes) -> None:
    with pytest.raises(DecodeError, match="RequestHeader"):
        read_request_header(data)


def test_an_unknown_api_key_raises_decode_error() -> None:
    with pytest.raises(DecodeError, match="no API has key 4"):
        read_request_header(b"\x00\x04" + bytes(8))


def test_an_oversized_client_id_raises_encode_error() -> None:
    with pytest.raises(EncodeError):
        request_header(ApiKey.FETCH, 12, 0, "c" * 32768)


def test_response_headers_match_their_declaration() -> None:
    for api in APIS.values():
        for version in api.versions:
            head = response_header(api.key, version, -7)
            flexible = version >= api.flexible_from and api.key is not ApiKey.API_VERSIONS
            assert head == codec(ResponseHeader, 1 if flexible else 0).encode(ResponseHeader(-7))
            assert read_response_header(api.key, version, head + b"body") == (-7, len(head))
    with pytest.raises(DecodeError, match="ResponseHeader"):
        read_response_header(ApiKey.FETCH, 12, bytes(4))


@given(frames=st.lists(st.binary(max_size=20), max_size=6), sizes=st.lists(st.integers(1, 30)))
@settings(deadline=None, max_examples=60)
def test_frames_are_split_from_a_stream_cut_anywhere(frames: list[bytes], sizes: list[int]) -> None:
    stream = b"".join(b"".join(framed([frame[:5], memoryview(frame)[5:]])) for frame in frames)
    splitter = FrameSplitter()
    got: list[bytes] = []
    position = 0
    for size in sizes:
        got += splitter.feed(stream[position : position + size])
        position += size
    got += splitter.feed(stream[position:])
    assert got == frames


def test_frame_sizes_are_limited() -> None:
    assert FrameSplitter(limit=4).feed(b"\x00\x00\x00\x04abcd") == [b"abcd"]
    with pytest.raises(FrameError, match="5 bytes; the limit is 4"):
        FrameSplitter(limit=4).feed(b"\x00\x00\x00\x05")
    with pytest.raises(FrameError, match="-1 bytes; the limit is 104857600"):
        FrameSplitter().feed(b"\xff\xff\xff\xff")


@given(st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=200)
def test_uvarints_round_trip(value: int) -> None:
    encoded = uvarint(value)
    assert len(encoded) == max(1, -(-value.bit_length() // 7))
    assert read_uvarint(b"\xff" + encoded + b"\xff", 1) == (value, 1 + len(encoded))


def test_metadata_records_round_trip_in_their_framing() -> None:
    record = TopicRecord(name="t", topic_id=ZERO_UUID)
    encoded = encode_framed(record, 0)
    assert encoded == b"\x01\x02\x00" + b"\x02t" + ZERO_UUID + b"\x00"
    assert decode_framed(encoded) == (record, 0)
    partition = PartitionRecord(replicas=[1], eligible_leader_replicas=[2])
    assert decode_framed(memoryview(encode_framed(partition, 2))) == (partition, 2)
    assert len(METADATA_RECORDS) == 26


def test_unknown_metadata_records_are_skipped_and_unknown_versions_raise() -> None:
    assert decode_framed(b"\x01\xc8\x01\x03rest") == (None, 3)
    with pytest.raises(DecodeError, match="TopicRecord has versions 0, not 1"):
        decode_framed(b"\x01\x02\x01")
    with pytest.raises(DecodeError, match="frame version 2"):
        decode_framed(b"\x02\x02\x00")
    with pytest.raises(DecodeError):
        decode_framed(b"\x01\x02")
    with pytest.raises(EncodeError, match="not a metadata record"):
        encode_framed(FetchRequest(), 4)


def test_remote_log_records_round_trip_in_their_framing() -> None:
    record = RemotePartitionDeleteMetadataRecord(broker_id=3)
    assert decode_framed(encode_framed(record, 0), REMOTE_LOG_RECORDS) == (record, 0)


def test_coordinator_records_round_trip() -> None:
    key = OffsetCommitKey(group="g", topic="t", partition=3)
    assert GROUP_RECORDS.encode_key(key) == b"\x00\x01\x00\x01g\x00\x01t\x00\x00\x00\x03"
    value = OffsetCommitValue(offset=5, leader_epoch=2, metadata="m", commit_timestamp=9)
    encoded = GROUP_RECORDS.encode_value(value, 3)
    assert encoded[:2] == b"\x00\x03"
    read_key = GROUP_RECORDS.decode_key(GROUP_RECORDS.encode_key(key))
    assert read_key == key
    assert GROUP_RECORDS.decode_value(key, encoded) == (value, 3)
    transaction = TransactionLogValue(producer_id=1, next_producer_id=4)
    assert TRANSACTION_RECORDS.decode_value(
        TransactionLogKey("id"), TRANSACTION_RECORDS.encode_value(transaction, 1)
    ) == (transaction, 1)
    assert sorted(SHARE_RECORDS.keys) == [0, 1]


def test_unknown_coordinator_keys_are_skipped_and_malformed_records_raise() -> None:
    assert GROUP_RECORDS.decode_key(b"\x00\x63anything") is None
    key: Struct = OffsetCommitKey()
    for data in (b"", b"\x00", b"\x00\x63", b"\x00\x01\x00"):
        with pytest.raises(DecodeError):
            GROUP_RECORDS.decode_value(key, data)
    with pytest.raises(DecodeError):
        GROUP_RECORDS.decode_key(b"\x00")
    with pytest.raises(EncodeError, match="not a key of this topic"):
        GROUP_RECORDS.encode_key(TransactionLogKey())
    with pytest.raises(EncodeError, match="not a value of this topic"):
        GROUP_RECORDS.encode_value(TransactionLogValue(), 0)

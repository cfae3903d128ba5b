"""Hostile bytes: any input yields a value or DecodeError, and no more memory than its size justifies."""

from __future__ import annotations

import contextlib
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from testkit.strategies import every_message, messages

from headrace.protocol.compiler import codec
from headrace.protocol.declare import Struct
from headrace.protocol.errors import DecodeError
from headrace.protocol.headers import read_request_header
from headrace.protocol.messages.api_versions import ApiVersionsRequest
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace.protocol.messages.list_groups import ListGroupsRequest
from headrace.protocol.messages.metadata import MetadataRequest
from headrace.protocol.messages.produce import ProduceRequest
from headrace.protocol.messages.sasl_handshake import SaslHandshakeRequest
from headrace.protocol.stored import GROUP_RECORDS, decode_framed

EVERY = every_message()
FUZZ = settings(deadline=None, max_examples=8, database=None, suppress_health_check=list(HealthCheck))


def try_to_decode(message: type[Struct], version: int, data: bytes) -> None:
    with contextlib.suppress(DecodeError):
        value, end = codec(message, version).decode_from(data, 0)
        assert isinstance(value, message)
        assert 0 <= end <= len(data)


@pytest.mark.parametrize("message", EVERY, ids=lambda message: message.__name__)
@FUZZ
@given(data=st.binary(max_size=200))
def test_random_bytes_decode_or_raise_decode_error(message: type[Struct], data: bytes) -> None:
    try_to_decode(message, message.facts.versions.high, data)


@pytest.mark.parametrize("message", EVERY, ids=lambda message: message.__name__)
@FUZZ
@given(data=st.data())
def test_damaged_messages_decode_or_raise_decode_error(message: type[Struct], data: st.DataObject) -> None:
    version = message.facts.versions.high
    encoded = bytearray(codec(message, version).encode(data.draw(messages(message, version))))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(encoded)))
        cut = data.draw(st.sampled_from((0, 0, 1, len(encoded))))
        encoded[place : place + cut] = data.draw(
            st.sampled_from((b"", b"\x00", b"\x7f", b"\x80", b"\xff", b"\xff" * 5))
        )
    try_to_decode(message, version, bytes(encoded))


@FUZZ
@given(data=st.binary(max_size=60))
def test_random_headers_and_stored_records_decode_or_raise_decode_error(data: bytes) -> None:
    for decode in (read_request_header, decode_framed, GROUP_RECORDS.decode_key):
        with contextlib.suppress(DecodeError):
            decode(data)


@pytest.mark.parametrize("message", EVERY, ids=lambda message: message.__name__)
def test_truncation_at_any_byte_raises_decode_error(message: type[Struct]) -> None:
    one = codec(message, message.facts.versions.high)
    encoded = one.encode(message())
    for length in range(len(encoded)):
        with pytest.raises(DecodeError, match=message.__name__):
            one.decode(encoded[:length])


def test_a_string_truncated_at_the_end_raises_decode_error() -> None:
    one = codec(SaslHandshakeRequest, 1)
    assert one.decode(b"\x00\x05PLAIN").mechanism == "PLAIN"
    with pytest.raises(DecodeError, match="SaslHandshakeRequest v1"):
        one.decode(b"\x00\x06PLAIN")


@pytest.mark.parametrize(
    ("message", "version", "data"),
    [
        (MetadataRequest, 0, b"\x7f\xff\xff\xff"),
        (MetadataRequest, 13, b"\xff\xff\xff\xff\x0f"),
        (CreateTopicsRequest, 7, b"\xff\xff\xff\xff\x07" + bytes(100)),
        (ProduceRequest, 9, b"\x00\x00\x01\x00\x00\x00\x00\xff\xff\xff\x7f" + bytes(50)),
    ],
)
def test_counts_are_checked_before_memory_is_allocated(message: type[Struct], version: int, data: bytes) -> None:
    codec(message, version).decode_from  # noqa: B018 compiles it before memory is measured
    tracemalloc.start()
    with pytest.raises(DecodeError, match="cannot fit"):
        codec(message, version).decode(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100_000


@pytest.mark.parametrize(
    ("message", "version", "data", "fault"),
    [
        (ListGroupsRequest, 4, b"\x80\x80\x80\x80\x80\x01\x00", "32 bits"),
        (ListGroupsRequest, 4, b"\xff\xff\xff\xff\x1f\x00", "32 bits"),
        (ListGroupsRequest, 4, b"\x00\x00", "null"),
        (ListGroupsRequest, 4, b"\x02\x00\x00", "null"),
        (ListGroupsRequest, 4, b"\x02\x02\xff\x00", "utf-8"),
        (ListGroupsRequest, 4, b"\x02\x81\x80\x02" + b"x" * 32768 + b"\x00", "longer than 32767"),
        (SaslHandshakeRequest, 1, b"\xff\xff", "null"),
        (SaslHandshakeRequest, 1, b"\xff\xfe", "null"),
        (MetadataRequest, 0, b"\xff\xff\xff\xff", "null"),
        (ApiVersionsRequest, 3, b"\x02a\x02b\x02\x05\x00\x04\x00", "tag 4 comes after tag 5"),
        (ApiVersionsRequest, 3, b"\x02a\x02b\x02\x05\x00\x05\x00", "tag 5 comes after tag 5"),
        (ApiVersionsRequest, 3, b"\x02a\x02b\x01\x05\x09x", "tag 5 claims 9 bytes"),
        (ApiVersionsRequest, 3, b"\x02a\x02b", "early"),
        # the cluster id of a fetch is tag 0: "ab" takes three bytes, four are claimed
        (FetchRequest, 12, bytes(25) + b"\x01\x01\x01\x01\x00\x04\x03ab\x00", "tag 0 should end"),
    ],
)
def test_decode_errors_name_the_fault(message: type[Struct], version: int, data: bytes, fault: str) -> None:
    with pytest.raises(DecodeError, match=fault) as raised:
        codec(message, version).decode(data)
    assert str(raised.value).startswith(f"{message.__name__} v{version}: ")


def test_unknown_tags_are_skipped() -> None:
    one = codec(ApiVersionsRequest, 3)
    plain = ApiVersionsRequest(client_software_name="a", client_software_version="b")
    assert one.decode(b"\x02a\x02b\x02\x05\x01x\x90\x4e\x02yz") == plain
    many = b"".join(bytes((tag, 0)) for tag in range(128))
    assert one.decode(b"\x02a\x02b\x80\x01" + many) == plain


def test_nullable_structs_are_decoded_by_their_marker() -> None:
    one = codec(DescribeTopicPartitionsRequest, 0)
    assert one.decode(b"\x01\x00\x00\x00\x00\xff\x00").cursor is None
    assert one.decode(b"\x01\x00\x00\x00\x00\x01\x02t\x00\x00\x00\x07\x00\x00").cursor == (
        DescribeTopicPartitionsRequest.Cursor(topic_name="t", partition_index=7)
    )


def test_decoded_records_are_not_copied() -> None:
    message = ProduceRequest(
        topic_data=[
            ProduceRequest.TopicProduceData(
                name="t", partition_data=[ProduceRequest.PartitionProduceData(records=bytes(1000))]
            )
        ]
    )
    received = bytearray(codec(ProduceRequest, 9).encode(message))
    records = codec(ProduceRequest, 9).decode(received).topic_data[0].partition_data[0].records
    assert isinstance(records, memoryview)
    assert records.obj is received


def test_absent_records_round_trip() -> None:
    response = FetchResponse(
        responses=[FetchResponse.FetchableTopicResponse(partitions=[FetchResponse.PartitionData()])]
    )
    assert codec(FetchResponse, 13).decode(codec(FetchResponse, 13).encode(response)) == response

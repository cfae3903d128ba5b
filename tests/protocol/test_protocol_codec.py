"""Codec behaviour in detail: versions, defaults, ignorable fields, parts, and errors that name the field."""

from __future__ import annotations

import traceback

import pytest

from headrace.base.ids import ZERO_UUID, Uuid
from headrace.protocol.compiler import codec
from headrace.protocol.declare import Struct
from headrace.protocol.errors import EncodeError, UnsupportedVersion
from headrace.protocol.messages.api_versions import ApiVersionsResponse
from headrace.protocol.messages.create_topics import CreateTopicsRequest
from headrace.protocol.messages.fetch import FetchRequest, FetchResponse
from headrace.protocol.messages.fetch_snapshot import FetchSnapshotResponse
from headrace.protocol.messages.headers import RequestHeader
from headrace.protocol.messages.metadata import MetadataRequest, MetadataResponse
from headrace.protocol.messages.offset_fetch import OffsetFetchRequest
from headrace.protocol.messages.produce import ProduceRequest, ProduceResponse
from headrace.protocol.messages.stored.consumer_groups import ConsumerGroupMemberMetadataValue
from headrace.protocol.messages.stored.metadata_topics import PartitionChangeRecord


def test_old_and_flexible_versions_encode_to_known_bytes() -> None:
    request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="ab")])
    assert codec(MetadataRequest, 1).encode(request) == b"\x00\x00\x00\x01\x00\x02ab"
    assert codec(MetadataRequest, 12).encode(request) == b"\x02" + ZERO_UUID + b"\x03ab\x00\x01\x00\x00"
    assert codec(MetadataRequest, 9).encode(MetadataRequest(topics=None)) == b"\x00\x01\x00\x00\x00"
    assert (
        codec(RequestHeader, 2).encode(RequestHeader(3, 12, 7, "me"))
        == b"\x00\x03\x00\x0c\x00\x00\x00\x07\x00\x02me\x00"
    )


def test_tagged_fields_are_written_in_order_and_only_when_set() -> None:
    bare = codec(PartitionChangeRecord, 2).encode(PartitionChangeRecord())
    assert bare == b"\xff" * 4 + ZERO_UUID + b"\x00"
    changed = PartitionChangeRecord(directories=[ZERO_UUID], last_known_elr=[], leader=-1)
    encoded = codec(PartitionChangeRecord, 2).encode(changed)
    assert encoded == bare[:-1] + b"\x03" + b"\x01\x04" + b"\xff" * 4 + b"\x07\x01\x01" + b"\x08\x11\x02" + ZERO_UUID


def test_a_null_tagged_struct_is_written_explicitly() -> None:
    # Kafka's default here is an empty struct, so null must be written explicitly (the schema has JSON's null, not "null"), and in
    # a tagged field null is a varint 0, not an int8 of -1. Kafka 4.3.1's own classes do both.
    value = ConsumerGroupMemberMetadataValue()
    assert value.classic_member_metadata is not None
    value.classic_member_metadata = None
    encoded = codec(ConsumerGroupMemberMetadataValue, 0).encode(value)
    assert encoded.endswith(b"\x01\x00\x01\x00")
    assert codec(ConsumerGroupMemberMetadataValue, 0).decode(encoded) == value


def test_invalid_versions_raise_unsupported_version() -> None:
    for version in (-1, 2, 14):
        with pytest.raises(UnsupportedVersion, match="ProduceRequest has versions 3-13"):
            codec(ProduceRequest, version)
    assert codec(ProduceRequest, 3) is codec(ProduceRequest, 3)


def test_a_field_of_another_version_raises_encode_error_unless_ignorable() -> None:
    with pytest.raises(EncodeError, match=r"OffsetFetchRequest v8: OffsetFetchRequest\.group_id is set"):
        codec(OffsetFetchRequest, 8).encode(OffsetFetchRequest(group_id="g"))
    rack = FetchRequest(rack_id="ignorable")
    assert codec(FetchRequest, 4).decode(codec(FetchRequest, 4).encode(rack)).rack_id == ""


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (5, CreateTopicsRequest(timeout_ms=2**31)),
        (4, CreateTopicsRequest(topics=None)),
        (5, CreateTopicsRequest(topics=None)),
        (5, CreateTopicsRequest(topics=[CreateTopicsRequest.CreatableTopic(name=None)])),
        (4, CreateTopicsRequest(topics=[CreateTopicsRequest.CreatableTopic(name="x" * 32768)])),
        (5, CreateTopicsRequest(topics=[CreateTopicsRequest.CreatableTopic(name="x" * 32768)])),
        (5, CreateTopicsRequest(topics=[CreateTopicsRequest.CreatableTopic(name="\ud800")])),
        (5, CreateTopicsRequest(timeout_ms="soon")),  # type: ignore[arg-type]
        (12, MetadataResponse(topics=[MetadataResponse.MetadataResponseTopic(topic_id=Uuid(b"short"))])),
        (2, PartitionChangeRecord(directories=[Uuid(b"short")])),
    ],
)
def test_values_that_do_not_fit_raise_encode_error(version: int, message: Struct) -> None:
    with pytest.raises(EncodeError, match=f"{type(message).__name__} v{version}: "):
        codec(type(message), version).encode(message)


def test_encode_errors_show_the_generated_line() -> None:
    with pytest.raises(EncodeError, match=r"message\.timeout_ms") as raised:
        codec(CreateTopicsRequest, 7).encode(CreateTopicsRequest(timeout_ms=2**31))
    cause = raised.value.__cause__
    assert cause is not None
    assert "message.timeout_ms" in "".join(traceback.format_exception(cause))


def test_encode_parts_does_not_copy_records() -> None:
    first, second = memoryview(b"first range"), b"second"
    partitions = [
        FetchResponse.PartitionData(partition_index=0, records=[first, second]),
        FetchResponse.PartitionData(partition_index=1, records=None),
        FetchResponse.PartitionData(partition_index=2, records=b"third" * 100),
    ]
    response = FetchResponse(responses=[FetchResponse.FetchableTopicResponse(topic="t", partitions=partitions)])
    for version in (4, 11, 12, 17):
        parts = codec(FetchResponse, version).encode_parts(response)
        assert len(parts) == (6 if version >= 12 else 5)
        assert parts[1] is first
        assert parts[2] is second
        assert b"".join(parts) == codec(FetchResponse, version).encode(response)  # type: ignore[arg-type]
        decoded = codec(FetchResponse, version).decode(b"".join(parts)).responses[0].partitions  # type: ignore[arg-type]
        assert [partition.records for partition in decoded] == [b"first rangesecond", None, b"third" * 100]


def test_messages_without_records_encode_to_one_part() -> None:
    response = ApiVersionsResponse(api_keys=[ApiVersionsResponse.ApiVersion(api_key=1)])
    assert codec(ApiVersionsResponse, 3).encode_parts(response) == [codec(ApiVersionsResponse, 3).encode(response)]


def test_null_in_non_nullable_records_raises_encode_error() -> None:
    partition = FetchSnapshotResponse.PartitionSnapshot(unaligned_records=None)
    response = FetchSnapshotResponse(topics=[FetchSnapshotResponse.TopicSnapshot(partitions=[partition])])
    with pytest.raises(EncodeError):
        codec(FetchSnapshotResponse, 1).encode(response)


def test_multi_byte_counts_and_lengths_round_trip() -> None:
    topics = [
        MetadataRequest.MetadataRequestTopic(name="n" * length) for length in (0, 126, 127, 128, 16383, 16384, 32767)
    ]
    request = MetadataRequest(topics=topics * 50)
    for version in (8, 13):
        assert codec(MetadataRequest, version).decode(codec(MetadataRequest, version).encode(request)) == request
    big = ProduceRequest.PartitionProduceData(records=bytes(3_000_000))
    produce = ProduceRequest(topic_data=[ProduceRequest.TopicProduceData(partition_data=[big])])
    assert codec(ProduceRequest, 13).decode(codec(ProduceRequest, 13).encode(produce)) == produce
    replicas = MetadataResponse.MetadataResponsePartition(replica_nodes=list(range(200)), isr_nodes=list(range(33)))
    metadata = MetadataResponse(topics=[MetadataResponse.MetadataResponseTopic(partitions=[replicas])])
    assert codec(MetadataResponse, 13).decode(codec(MetadataResponse, 13).encode(metadata)) == metadata


def test_mutable_defaults_are_not_shared() -> None:
    one, other = ProduceResponse.PartitionProduceResponse(), ProduceResponse.PartitionProduceResponse()
    one.current_leader.leader_id = 5
    one.record_errors.append(ProduceResponse.BatchIndexAndErrorMessage())
    assert other == ProduceResponse.PartitionProduceResponse()
    encoded = codec(ProduceResponse, 10).encode(
        ProduceResponse(responses=[ProduceResponse.TopicProduceResponse(partition_responses=[other, other])])
    )
    first, second = codec(ProduceResponse, 10).decode(encoded).responses[0].partition_responses
    assert first.current_leader is not second.current_leader

"""ShareFetch: acquire records in a share session, with acknowledgements on the way (KIP-932)."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Bool, Int8, Int16, Int32, Int64, RecordRanges, String, Uuid


@request(78, "1-2", flexible="1+", listeners="broker")
class ShareFetchRequest(Struct):
    class FetchTopic(Struct):
        topic_id: Uuid = ZERO_UUID
        partitions: list[ShareFetchRequest.FetchPartition] = []

    class FetchPartition(Struct):
        partition_index: Int32 = 0
        acknowledgement_batches: list[ShareFetchRequest.AcknowledgementBatch] = []

    class AcknowledgementBatch(Struct):
        first_offset: Int64 = 0
        last_offset: Int64 = 0
        acknowledge_types: list[Int8] = []

    class ForgottenTopic(Struct):
        topic_id: Uuid = ZERO_UUID
        partitions: list[Int32] = []

    group_id: String | None = None
    member_id: String | None = ""
    share_session_epoch: Int32 = 0
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = 2**31 - 1
    max_records: Int32 = 0
    batch_size: Int32 = 0
    share_acquire_mode: Annotated[Int8, Field("2+", ignorable=True)] = 0
    is_renew_ack: Annotated[Bool, Field("2+")] = False
    topics: list[FetchTopic] = []
    forgotten_topics_data: list[ForgottenTopic] = []


@response(78, "1-2", flexible="1+")
class ShareFetchResponse(Struct):
    class ShareFetchableTopicResponse(Struct):
        topic_id: Uuid = ZERO_UUID
        partitions: list[ShareFetchResponse.PartitionData] = []

    class PartitionData(Struct):
        partition_index: Int32 = 0
        error_code: Int16 = 0
        error_message: String | None = None
        acknowledge_error_code: Int16 = 0
        acknowledge_error_message: String | None = None
        current_leader: ShareFetchResponse.LeaderIdAndEpoch = field(
            default_factory=lambda: ShareFetchResponse.LeaderIdAndEpoch()
        )
        records: RecordRanges = b""
        acquired_records: list[ShareFetchResponse.AcquiredRecords] = []

    class LeaderIdAndEpoch(Struct):
        leader_id: Int32 = 0
        leader_epoch: Int32 = 0

    class AcquiredRecords(Struct):
        first_offset: Int64 = 0
        last_offset: Int64 = 0
        delivery_count: Int16 = 0

    class NodeEndpoint(Struct):
        node_id: Int32 = 0
        host: String = ""
        port: Int32 = 0
        rack: String | None = None

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    acquisition_lock_timeout_ms: Int32 = 0
    responses: list[ShareFetchableTopicResponse] = []
    node_endpoints: list[NodeEndpoint] = []

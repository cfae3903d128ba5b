"""ShareAcknowledge: accept, release, reject or renew acquired records (KIP-932)."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Bool, Int8, Int16, Int32, Int64, String, Uuid


@request(79, "1-2", flexible="1+", listeners="broker")
class ShareAcknowledgeRequest(Struct):
    class AcknowledgeTopic(Struct):
        topic_id: Uuid = ZERO_UUID
        partitions: list[ShareAcknowledgeRequest.AcknowledgePartition] = []

    class AcknowledgePartition(Struct):
        partition_index: Int32 = 0
        acknowledgement_batches: list[ShareAcknowledgeRequest.AcknowledgementBatch] = []

    class AcknowledgementBatch(Struct):
        first_offset: Int64 = 0
        last_offset: Int64 = 0
        acknowledge_types: list[Int8] = []

    group_id: String | None = None
    member_id: String | None = ""
    share_session_epoch: Int32 = 0
    is_renew_ack: Annotated[Bool, Field("2+")] = False
    topics: list[AcknowledgeTopic] = []


@response(79, "1-2", flexible="1+")
class ShareAcknowledgeResponse(Struct):
    class ShareAcknowledgeTopicResponse(Struct):
        topic_id: Uuid = ZERO_UUID
        partitions: list[ShareAcknowledgeResponse.PartitionData] = []

    class PartitionData(Struct):
        partition_index: Int32 = 0
        error_code: Int16 = 0
        error_message: String | None = None
        current_leader: ShareAcknowledgeResponse.LeaderIdAndEpoch = field(
            default_factory=lambda: ShareAcknowledgeResponse.LeaderIdAndEpoch()
        )

    class LeaderIdAndEpoch(Struct):
        leader_id: Int32 = 0
        leader_epoch: Int32 = 0

    class NodeEndpoint(Struct):
        node_id: Int32 = 0
        host: String = ""
        port: Int32 = 0
        rack: String | None = None

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    acquisition_lock_timeout_ms: Annotated[Int32, Field("2+", ignorable=True)] = 0
    responses: list[ShareAcknowledgeTopicResponse] = []
    node_endpoints: list[NodeEndpoint] = []

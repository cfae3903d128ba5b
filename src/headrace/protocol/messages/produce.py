"""Produce: append record batches; topic ids instead of names from v13, no response at all with acks=0."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Int16, Int32, Int64, Records, String, Uuid


@request(0, "3-13", flexible="9+", listeners="broker")
class ProduceRequest(Struct):
    class TopicProduceData(Struct):
        name: Annotated[String, Field("3-12", ignorable=True)] = ""
        topic_id: Annotated[Uuid, Field("13+", ignorable=True)] = ZERO_UUID
        partition_data: list[ProduceRequest.PartitionProduceData] = []

    class PartitionProduceData(Struct):
        index: Int32 = 0
        records: Records | None = None

    transactional_id: String | None = None
    acks: Int16 = 0
    timeout_ms: Int32 = 0
    topic_data: list[TopicProduceData] = []


@response(0, "3-13", flexible="9+")
class ProduceResponse(Struct):
    class TopicProduceResponse(Struct):
        name: Annotated[String, Field("3-12", ignorable=True)] = ""
        topic_id: Annotated[Uuid, Field("13+", ignorable=True)] = ZERO_UUID
        partition_responses: list[ProduceResponse.PartitionProduceResponse] = []

    class PartitionProduceResponse(Struct):
        index: Int32 = 0
        error_code: Int16 = 0
        base_offset: Int64 = 0
        log_append_time_ms: Int64 = -1
        log_start_offset: Annotated[Int64, Field("5+", ignorable=True)] = -1
        record_errors: Annotated[list[ProduceResponse.BatchIndexAndErrorMessage], Field("8+", ignorable=True)] = []
        error_message: Annotated[String | None, Field("8+", ignorable=True)] = None
        current_leader: Annotated[ProduceResponse.LeaderIdAndEpoch, Field("10+", tag=0)] = field(
            default_factory=lambda: ProduceResponse.LeaderIdAndEpoch()
        )

    class BatchIndexAndErrorMessage(Struct):
        batch_index: Int32 = 0
        batch_index_error_message: String | None = None

    class LeaderIdAndEpoch(Struct):
        leader_id: Int32 = -1
        leader_epoch: Int32 = -1

    class NodeEndpoint(Struct):
        node_id: Int32 = 0
        host: String = ""
        port: Int32 = 0
        rack: String | None = None

    responses: list[TopicProduceResponse] = []
    throttle_time_ms: Int32 = 0
    node_endpoints: Annotated[list[NodeEndpoint], Field("10+", tag=0)] = []

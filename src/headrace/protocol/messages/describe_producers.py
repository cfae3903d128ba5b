"""DescribeProducers: the producers that a partition leader remembers."""

from __future__ import annotations

from headrace.protocol.declare import Struct, request, response
from headrace.protocol.types import Int16, Int32, Int64, String


@request(61, "0", flexible="0+", listeners="broker")
class DescribeProducersRequest(Struct):
    class TopicRequest(Struct):
        name: String = ""
        partition_indexes: list[Int32] = []

    topics: list[TopicRequest] = []


@response(61, "0", flexible="0+")
class DescribeProducersResponse(Struct):
    class TopicResponse(Struct):
        name: String = ""
        partitions: list[DescribeProducersResponse.PartitionResponse] = []

    class PartitionResponse(Struct):
        partition_index: Int32 = 0
        error_code: Int16 = 0
        error_message: String | None = None
        active_producers: list[DescribeProducersResponse.ProducerState] = []

    class ProducerState(Struct):
        producer_id: Int64 = 0
        producer_epoch: Int32 = 0
        last_sequence: Int32 = -1
        last_timestamp: Int64 = -1
        coordinator_epoch: Int32 = 0
        current_txn_start_offset: Int64 = -1

    throttle_time_ms: Int32 = 0
    topics: list[TopicResponse] = []

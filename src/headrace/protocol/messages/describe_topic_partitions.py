"""DescribeTopicPartitions: topic metadata page by page, with eligible leader replicas (KIP-966)."""

from __future__ import annotations

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Struct, request, response
from headrace.protocol.types import Bool, Int16, Int32, String, Uuid


@request(75, "0", flexible="0+", listeners="broker")
class DescribeTopicPartitionsRequest(Struct):
    class TopicRequest(Struct):
        name: String = ""

    class Cursor(Struct):
        topic_name: String = ""
        partition_index: Int32 = 0

    topics: list[TopicRequest] = []
    response_partition_limit: Int32 = 2000
    cursor: Cursor | None = None


@response(75, "0", flexible="0+")
class DescribeTopicPartitionsResponse(Struct):
    class DescribeTopicPartitionsResponseTopic(Struct):
        error_code: Int16 = 0
        name: String | None = ""
        topic_id: Uuid = ZERO_UUID
        is_internal: Bool = False
        partitions: list[DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition] = []
        topic_authorized_operations: Int32 = -(2**31)

    class DescribeTopicPartitionsResponsePartition(Struct):
        error_code: Int16 = 0
        partition_index: Int32 = 0
        leader_id: Int32 = 0
        leader_epoch: Int32 = -1
        replica_nodes: list[Int32] = []
        isr_nodes: list[Int32] = []
        eligible_leader_replicas: list[Int32] | None = None
        last_known_elr: list[Int32] | None = None
        offline_replicas: list[Int32] = []

    class Cursor(Struct):
        topic_name: String = ""
        partition_index: Int32 = 0

    throttle_time_ms: Int32 = 0
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    next_cursor: Cursor | None = None

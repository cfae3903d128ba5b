"""ConsumerGroupHeartbeat: join, stay in and leave a KIP-848 consumer group."""

from __future__ import annotations

from typing import Annotated

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Int16, Int32, String, Uuid


@request(68, "0-1", flexible="0+", listeners="broker")
class ConsumerGroupHeartbeatRequest(Struct):
    class TopicPartitions(Struct):
        topic_id: Uuid = ZERO_UUID
        partitions: list[Int32] = []

    group_id: String = ""
    member_id: String = ""
    member_epoch: Int32 = 0
    instance_id: String | None = None
    rack_id: String | None = None
    rebalance_timeout_ms: Int32 = -1
    subscribed_topic_names: list[String] | None = None
    subscribed_topic_regex: Annotated[String | None, Field("1+")] = None
    server_assignor: String | None = None
    topic_partitions: list[TopicPartitions] | None = None


@response(68, "0-1", flexible="0+")
class ConsumerGroupHeartbeatResponse(Struct):
    class Assignment(Struct):
        topic_partitions: list[ConsumerGroupHeartbeatResponse.TopicPartitions] = []

    class TopicPartitions(Struct):
        topic_id: Uuid = ZERO_UUID
        partitions: list[Int32] = []

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    member_id: String | None = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: Assignment | None = None

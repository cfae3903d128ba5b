"""ConsumerGroupDescribe: epochs, members and assignments of KIP-848 consumer groups."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Bool, Int8, Int16, Int32, String, Uuid


@request(69, "0-1", flexible="0+", listeners="broker")
class ConsumerGroupDescribeRequest(Struct):
    group_ids: list[String] = []
    include_authorized_operations: Bool = False


@response(69, "0-1", flexible="0+")
class ConsumerGroupDescribeResponse(Struct):
    class DescribedGroup(Struct):
        error_code: Int16 = 0
        error_message: String | None = None
        group_id: String = ""
        group_state: String = ""
        group_epoch: Int32 = 0
        assignment_epoch: Int32 = 0
        assignor_name: String = ""
        members: list[ConsumerGroupDescribeResponse.Member] = []
        authorized_operations: Int32 = -(2**31)

    class Member(Struct):
        member_id: String = ""
        instance_id: String | None = None
        rack_id: String | None = None
        member_epoch: Int32 = 0
        client_id: String = ""
        client_host: String = ""
        subscribed_topic_names: list[String] = []
        subscribed_topic_regex: String | None = None
        assignment: ConsumerGroupDescribeResponse.Assignment = field(
            default_factory=lambda: ConsumerGroupDescribeResponse.Assignment()
        )
        target_assignment: ConsumerGroupDescribeResponse.Assignment = field(
            default_factory=lambda: ConsumerGroupDescribeResponse.Assignment()
        )
        member_type: Annotated[Int8, Field("1+", ignorable=True)] = -1

    class Assignment(Struct):
        topic_partitions: list[ConsumerGroupDescribeResponse.TopicPartitions] = []

    class TopicPartitions(Struct):
        topic_id: Uuid = ZERO_UUID
        topic_name: String = ""
        partitions: list[Int32] = []

    throttle_time_ms: Int32 = 0
    groups: list[DescribedGroup] = []

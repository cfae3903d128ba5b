"""ShareGroupDescribe: members and assignments of share groups."""

from __future__ import annotations

from msgspec import field

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Struct, request, response
from headrace.protocol.types import Bool, Int16, Int32, String, Uuid


@request(77, "1", flexible="1+", listeners="broker")
class ShareGroupDescribeRequest(Struct):
    group_ids: list[String] = []
    include_authorized_operations: Bool = False


@response(77, "1", flexible="1+")
class ShareGroupDescribeResponse(Struct):
    class DescribedGroup(Struct):
        error_code: Int16 = 0
        error_message: String | None = None
        group_id: String = ""
        group_state: String = ""
        group_epoch: Int32 = 0
        assignment_epoch: Int32 = 0
        assignor_name: String = ""
        members: list[ShareGroupDescribeResponse.Member] = []
        authorized_operations: Int32 = -(2**31)

    class Member(Struct):
        member_id: String = ""
        rack_id: String | None = None
        member_epoch: Int32 = 0
        client_id: String = ""
        client_host: String = ""
        subscribed_topic_names: list[String] = []
        assignment: ShareGroupDescribeResponse.Assignment = field(
            default_factory=lambda: ShareGroupDescribeResponse.Assignment()
        )

    class Assignment(Struct):
        topic_partitions: list[ShareGroupDescribeResponse.TopicPartitions] = []

    class TopicPartitions(Struct):
        topic_id: Uuid = ZERO_UUID
        topic_name: String = ""
        partitions: list[Int32] = []

    throttle_time_ms: Int32 = 0
    groups: list[DescribedGroup] = []

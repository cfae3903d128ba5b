"""Share groups in __consumer_offsets."""

from __future__ import annotations

from typing import Annotated

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Field, Struct, coordinator_key, coordinator_value
from headrace.protocol.types import Int8, Int32, Int64, String, Uuid


@coordinator_key(11)
class ShareGroupMetadataKey(Struct):
    group_id: String = ""


@coordinator_value(11, "0", flexible="0+")
class ShareGroupMetadataValue(Struct):
    epoch: Int32 = 0
    metadata_hash: Int64 = 0


@coordinator_key(10)
class ShareGroupMemberMetadataKey(Struct):
    group_id: String = ""
    member_id: String = ""


@coordinator_value(10, "0", flexible="0+")
class ShareGroupMemberMetadataValue(Struct):
    rack_id: String | None = ""
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[String] = []


@coordinator_key(12)
class ShareGroupTargetAssignmentMetadataKey(Struct):
    group_id: String = ""


@coordinator_value(12, "0", flexible="0+")
class ShareGroupTargetAssignmentMetadataValue(Struct):
    assignment_epoch: Int32 = 0
    assignment_timestamp: Annotated[Int64, Field(tag=0)] = 0


@coordinator_key(13)
class ShareGroupTargetAssignmentMemberKey(Struct):
    group_id: String = ""
    member_id: String = ""


@coordinator_value(13, "0", flexible="0+")
class ShareGroupTargetAssignmentMemberValue(Struct):
    class TopicPartition(Struct):
        topic_id: Uuid = ZERO_UUID
        partitions: list[Int32] = []

    topic_partitions: list[TopicPartition] = []


@coordinator_key(14)
class ShareGroupCurrentMemberAssignmentKey(Struct):
    group_id: String = ""
    member_id: String = ""


@coordinator_value(14, "0", flexible="0+")
class ShareGroupCurrentMemberAssignmentValue(Struct):
    class TopicPartitions(Struct):
        topic_id: Uuid = ZERO_UUID
        partitions: list[Int32] = []

    member_epoch: Int32 = 0
    previous_member_epoch: Int32 = 0
    state: Int8 = 0
    assigned_partitions: list[TopicPartitions] = []


@coordinator_key(15)
class ShareGroupStatePartitionMetadataKey(Struct):
    group_id: String = ""


@coordinator_value(15, "0", flexible="0+")
class ShareGroupStatePartitionMetadataValue(Struct):
    class TopicPartitionsInfo(Struct):
        topic_id: Uuid = ZERO_UUID
        topic_name: String = ""
        partitions: list[Int32] = []

    class TopicInfo(Struct):
        topic_id: Uuid = ZERO_UUID
        topic_name: String = ""

    initializing_topics: list[TopicPartitionsInfo] = []
    initialized_topics: list[TopicPartitionsInfo] = []
    deleting_topics: list[TopicInfo] = []

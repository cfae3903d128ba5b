"""KIP-848 consumer groups in __consumer_offsets."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Field, Struct, coordinator_key, coordinator_value
from headrace.protocol.types import Bytes, Int8, Int32, Int64, String, Uuid


@coordinator_key(3)
class ConsumerGroupMetadataKey(Struct):
    group_id: String = ""


@coordinator_value(3, "0", flexible="0+")
class ConsumerGroupMetadataValue(Struct):
    epoch: Int32 = 0
    metadata_hash: Annotated[Int64, Field(tag=0)] = 0


@coordinator_key(4)
class ConsumerGroupPartitionMetadataKey(Struct):
    group_id: String = ""


@coordinator_value(4, "0", flexible="0+")
class ConsumerGroupPartitionMetadataValue(Struct):
    class TopicMetadata(Struct):
        topic_id: Uuid = ZERO_UUID
        topic_name: String = ""
        num_partitions: Int32 = 0
        partition_metadata: list[ConsumerGroupPartitionMetadataValue.PartitionMetadata] = []

    class PartitionMetadata(Struct):
        partition: Int32 = 0
        racks: list[String] = []

    topics: list[TopicMetadata] = []


@coordinator_key(5)
class ConsumerGroupMemberMetadataKey(Struct):
    group_id: String = ""
    member_id: String = ""


@coordinator_value(5, "0", flexible="0+")
class ConsumerGroupMemberMetadataValue(Struct):
    class ClassicMemberMetadata(Struct):
        session_timeout_ms: Int32 = 0
        supported_protocols: list[ConsumerGroupMemberMetadataValue.ClassicProtocol] = []

    class ClassicProtocol(Struct):
        name: String = ""
        metadata: Bytes = b""

    instance_id: String | None = ""
    rack_id: String | None = ""
    client_id: String = ""
    client_host: String = ""
    subscribed_topic_names: list[String] = []
    subscribed_topic_regex: String | None = ""
    rebalance_timeout_ms: Int32 = -1
    server_assignor: String | None = ""
    classic_member_metadata: Annotated[ClassicMemberMetadata | None, Field(tag=0)] = field(
        default_factory=ClassicMemberMetadata
    )


@coordinator_key(6)
class ConsumerGroupTargetAssignmentMetadataKey(Struct):
    group_id: String = ""


@coordinator_value(6, "0", flexible="0+")
class ConsumerGroupTargetAssignmentMetadataValue(Struct):
    assignment_epoch: Int32 = 0
    assignment_timestamp: Annotated[Int64, Field(tag=0)] = 0


@coordinator_key(7)
class ConsumerGroupTargetAssignmentMemberKey(Struct):
    group_id: String = ""
    member_id: String = ""


@coordinator_value(7, "0", flexible="0+")
class ConsumerGroupTargetAssignmentMemberValue(Struct):
    class TopicPartition(Struct):
        topic_id: Uuid = ZERO_UUID
        partitions: list[Int32] = []

    topic_partitions: list[TopicPartition] = []


@coordinator_key(8)
class ConsumerGroupCurrentMemberAssignmentKey(Struct):
    group_id: String = ""
    member_id: String = ""


@coordinator_value(8, "0", flexible="0+")
class ConsumerGroupCurrentMemberAssignmentValue(Struct):
    class TopicPartitions(Struct):
        topic_id: Uuid = ZERO_UUID
        partitions: list[Int32] = []
        assignment_epochs: Annotated[list[Int32] | None, Field(tag=0)] = []

    member_epoch: Int32 = 0
    previous_member_epoch: Int32 = 0
    state: Int8 = 0
    assigned_partitions: list[TopicPartitions] = []
    partitions_pending_revocation: list[TopicPartitions] = []


@coordinator_key(16)
class ConsumerGroupRegularExpressionKey(Struct):
    group_id: String = ""
    regular_expression: String = ""


@coordinator_value(16, "0", flexible="0+")
class ConsumerGroupRegularExpressionValue(Struct):
    topics: list[String] = []
    version: Int64 = 0
    timestamp: Int64 = 0

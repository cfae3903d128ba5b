"""Remote segments in __remote_log_metadata, and the snapshots of that topic."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Field, Struct, metadata_record
from headrace.protocol.types import Bool, Bytes, Int8, Int32, Int64, String, Uuid


@metadata_record(0, "0", flexible="0+")
class RemoteLogSegmentMetadataRecord(Struct):
    class RemoteLogSegmentIdEntry(Struct):
        topic_id_partition: RemoteLogSegmentMetadataRecord.TopicIdPartitionEntry = field(
            default_factory=lambda: RemoteLogSegmentMetadataRecord.TopicIdPartitionEntry()
        )
        id: Uuid = ZERO_UUID

    class TopicIdPartitionEntry(Struct):
        name: String = ""
        id: Uuid = ZERO_UUID
        partition: Int32 = 0

    class SegmentLeaderEpochEntry(Struct):
        leader_epoch: Int32 = 0
        offset: Int64 = 0

    remote_log_segment_id: RemoteLogSegmentIdEntry = field(default_factory=RemoteLogSegmentIdEntry)
    start_offset: Int64 = 0
    end_offset: Int64 = 0
    broker_id: Int32 = 0
    max_timestamp_ms: Int64 = 0
    event_timestamp_ms: Int64 = 0
    segment_leader_epochs: list[SegmentLeaderEpochEntry] = []
    segment_size_in_bytes: Int32 = 0
    custom_metadata: Bytes | None = None
    remote_log_segment_state: Int8 = 0
    txn_index_empty: Annotated[Bool, Field(tag=0)] = False


@metadata_record(1, "0", flexible="0+")
class RemoteLogSegmentMetadataUpdateRecord(Struct):
    class RemoteLogSegmentIdEntry(Struct):
        topic_id_partition: RemoteLogSegmentMetadataUpdateRecord.TopicIdPartitionEntry = field(
            default_factory=lambda: RemoteLogSegmentMetadataUpdateRecord.TopicIdPartitionEntry()
        )
        id: Uuid = ZERO_UUID

    class TopicIdPartitionEntry(Struct):
        name: String = ""
        id: Uuid = ZERO_UUID
        partition: Int32 = 0

    remote_log_segment_id: RemoteLogSegmentIdEntry = field(default_factory=RemoteLogSegmentIdEntry)
    broker_id: Int32 = 0
    event_timestamp_ms: Int64 = 0
    custom_metadata: Bytes | None = None
    remote_log_segment_state: Int8 = 0


@metadata_record(2, "0", flexible="0+")
class RemotePartitionDeleteMetadataRecord(Struct):
    class TopicIdPartitionEntry(Struct):
        name: String = ""
        id: Uuid = ZERO_UUID
        partition: Int32 = 0

    topic_id_partition: TopicIdPartitionEntry = field(default_factory=TopicIdPartitionEntry)
    broker_id: Int32 = 0
    event_timestamp_ms: Int64 = 0
    remote_partition_delete_state: Int8 = 0


@metadata_record(3, "0", flexible="0+")
class RemoteLogSegmentMetadataSnapshotRecord(Struct):
    class SegmentLeaderEpochEntry(Struct):
        leader_epoch: Int32 = 0
        offset: Int64 = 0

    segment_id: Uuid = ZERO_UUID
    start_offset: Int64 = 0
    end_offset: Int64 = 0
    broker_id: Int32 = 0
    max_timestamp_ms: Int64 = 0
    event_timestamp_ms: Int64 = 0
    segment_leader_epochs: list[SegmentLeaderEpochEntry] = []
    segment_size_in_bytes: Int32 = 0
    custom_metadata: Bytes | None = None
    remote_log_segment_state: Int8 = 0
    txn_index_empty: Annotated[Bool, Field(tag=0)] = False

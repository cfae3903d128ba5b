"""FetchSnapshot: a byte range of a metadata snapshot."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Int16, Int32, Int64, RecordRanges, String, Uint16, Uuid


@request(59, "0-1", flexible="0+", listeners="controller")
class FetchSnapshotRequest(Struct):
    class TopicSnapshot(Struct):
        name: String = ""
        partitions: list[FetchSnapshotRequest.PartitionSnapshot] = []

    class PartitionSnapshot(Struct):
        partition: Int32 = 0
        current_leader_epoch: Int32 = 0
        snapshot_id: FetchSnapshotRequest.SnapshotId = field(default_factory=lambda: FetchSnapshotRequest.SnapshotId())
        position: Int64 = 0
        replica_directory_id: Annotated[Uuid, Field("1+", tag=0, ignorable=True)] = ZERO_UUID

    class SnapshotId(Struct):
        end_offset: Int64 = 0
        epoch: Int32 = 0

    cluster_id: Annotated[String | None, Field(tag=0)] = None
    replica_id: Int32 = -1
    max_bytes: Int32 = 2**31 - 1
    topics: list[TopicSnapshot] = []


@response(59, "0-1", flexible="0+")
class FetchSnapshotResponse(Struct):
    class TopicSnapshot(Struct):
        name: String = ""
        partitions: list[FetchSnapshotResponse.PartitionSnapshot] = []

    class PartitionSnapshot(Struct):
        index: Int32 = 0
        error_code: Int16 = 0
        snapshot_id: FetchSnapshotResponse.SnapshotId = field(
            default_factory=lambda: FetchSnapshotResponse.SnapshotId()
        )
        current_leader: Annotated[FetchSnapshotResponse.LeaderIdAndEpoch, Field(tag=0)] = field(
            default_factory=lambda: FetchSnapshotResponse.LeaderIdAndEpoch()
        )
        size: Int64 = 0
        position: Int64 = 0
        unaligned_records: RecordRanges = b""

    class SnapshotId(Struct):
        end_offset: Int64 = 0
        epoch: Int32 = 0

    class LeaderIdAndEpoch(Struct):
        leader_id: Int32 = 0
        leader_epoch: Int32 = 0

    class NodeEndpoint(Struct):
        node_id: Int32 = 0
        host: String = ""
        port: Uint16 = 0

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    topics: list[TopicSnapshot] = []
    node_endpoints: Annotated[list[NodeEndpoint], Field("1+", tag=0)] = []

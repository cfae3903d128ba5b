"""Fetch: consumers, followers and the quorum read logs; incremental through fetch sessions from v7, topic ids from v13."""

from __future__ import annotations

from typing import Annotated

from msgspec import field

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Int8, Int16, Int32, Int64, RecordRanges, String, Uuid


@request(1, "4-18", flexible="12+", listeners="broker controller")
class FetchRequest(Struct):
    class ReplicaState(Struct):
        replica_id: Int32 = -1
        replica_epoch: Int64 = -1

    class FetchTopic(Struct):
        topic: Annotated[String, Field("4-12", ignorable=True)] = ""
        topic_id: Annotated[Uuid, Field("13+", ignorable=True)] = ZERO_UUID
        partitions: list[FetchRequest.FetchPartition] = []

    class FetchPartition(Struct):
        partition: Int32 = 0
        current_leader_epoch: Annotated[Int32, Field("9+", ignorable=True)] = -1
        fetch_offset: Int64 = 0
        last_fetched_epoch: Annotated[Int32, Field("12+")] = -1
        log_start_offset: Annotated[Int64, Field("5+", ignorable=True)] = -1
        partition_max_bytes: Int32 = 0
        replica_directory_id: Annotated[Uuid, Field("17+", tag=0, ignorable=True)] = ZERO_UUID
        high_watermark: Annotated[Int64, Field("18+", tag=1, ignorable=True)] = 2**63 - 1

    class ForgottenTopic(Struct):
        topic: Annotated[String, Field("7-12", ignorable=True)] = ""
        topic_id: Annotated[Uuid, Field("13+", ignorable=True)] = ZERO_UUID
        partitions: list[Int32] = []

    cluster_id: Annotated[String | None, Field("12+", tag=0, ignorable=True)] = None
    replica_id: Annotated[Int32, Field("4-14")] = -1
    replica_state: Annotated[ReplicaState, Field("15+", tag=1)] = field(default_factory=ReplicaState)
    max_wait_ms: Int32 = 0
    min_bytes: Int32 = 0
    max_bytes: Int32 = 2**31 - 1
    isolation_level: Int8 = 0
    session_id: Annotated[Int32, Field("7+", ignorable=True)] = 0
    session_epoch: Annotated[Int32, Field("7+", ignorable=True)] = -1
    topics: list[FetchTopic] = []
    forgotten_topics_data: Annotated[list[ForgottenTopic], Field("7+")] = []
    rack_id: Annotated[String, Field("11+", ignorable=True)] = ""


@response(1, "4-18", flexible="12+")
class FetchResponse(Struct):
    class FetchableTopicResponse(Struct):
        topic: Annotated[String, Field("4-12", ignorable=True)] = ""
        topic_id: Annotated[Uuid, Field("13+", ignorable=True)] = ZERO_UUID
        partitions: list[FetchResponse.PartitionData] = []

    class PartitionData(Struct):
        partition_index: Int32 = 0
        error_code: Int16 = 0
        high_watermark: Int64 = 0
        last_stable_offset: Int64 = -1
        log_start_offset: Annotated[Int64, Field("5+", ignorable=True)] = -1
        diverging_epoch: Annotated[FetchResponse.EpochEndOffset, Field("12+", tag=0)] = field(
            default_factory=lambda: FetchResponse.EpochEndOffset()
        )
        current_leader: Annotated[FetchResponse.LeaderIdAndEpoch, Field("12+", tag=1)] = field(
            default_factory=lambda: FetchResponse.LeaderIdAndEpoch()
        )
        snapshot_id: Annotated[FetchResponse.SnapshotId, Field("12+", tag=2)] = field(
            default_factory=lambda: FetchResponse.SnapshotId()
        )
        aborted_transactions: list[FetchResponse.AbortedTransaction] | None = []
        preferred_read_replica: Annotated[Int32, Field("11+")] = -1
        records: RecordRanges | None = None

    class EpochEndOffset(Struct):
        epoch: Int32 = -1
        end_offset: Int64 = -1

    class LeaderIdAndEpoch(Struct):
        leader_id: Int32 = -1
        leader_epoch: Int32 = -1

    class SnapshotId(Struct):
        end_offset: Int64 = -1
        epoch: Int32 = -1

    class AbortedTransaction(Struct):
        producer_id: Int64 = 0
        first_offset: Int64 = 0

    class NodeEndpoint(Struct):
        node_id: Int32 = 0
        host: String = ""
        port: Int32 = 0
        rack: String | None = None

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Field("7+", ignorable=True)] = 0
    session_id: Annotated[Int32, Field("7+")] = 0
    responses: list[FetchableTopicResponse] = []
    node_endpoints: Annotated[list[NodeEndpoint], Field("16+", tag=0)] = []

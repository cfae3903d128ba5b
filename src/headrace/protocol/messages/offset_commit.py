"""OffsetCommit: a group stores its positions; topic ids from v10."""

from __future__ import annotations

from typing import Annotated

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Int16, Int32, Int64, String, Uuid


@request(8, "2-10", flexible="8+", listeners="broker")
class OffsetCommitRequest(Struct):
    class OffsetCommitRequestTopic(Struct):
        name: Annotated[String, Field("2-9", ignorable=True)] = ""
        topic_id: Annotated[Uuid, Field("10+", ignorable=True)] = ZERO_UUID
        partitions: list[OffsetCommitRequest.OffsetCommitRequestPartition] = []

    class OffsetCommitRequestPartition(Struct):
        partition_index: Int32 = 0
        committed_offset: Int64 = 0
        committed_leader_epoch: Annotated[Int32, Field("6+", ignorable=True)] = -1
        committed_metadata: String | None = ""

    group_id: String = ""
    generation_id_or_member_epoch: Int32 = -1
    member_id: String = ""
    group_instance_id: Annotated[String | None, Field("7+")] = None
    retention_time_ms: Annotated[Int64, Field("2-4", ignorable=True)] = -1
    topics: list[OffsetCommitRequestTopic] = []


@response(8, "2-10", flexible="8+")
class OffsetCommitResponse(Struct):
    class OffsetCommitResponseTopic(Struct):
        name: Annotated[String, Field("2-9", ignorable=True)] = ""
        topic_id: Annotated[Uuid, Field("10+", ignorable=True)] = ZERO_UUID
        partitions: list[OffsetCommitResponse.OffsetCommitResponsePartition] = []

    class OffsetCommitResponsePartition(Struct):
        partition_index: Int32 = 0
        error_code: Int16 = 0

    throttle_time_ms: Annotated[Int32, Field("3+", ignorable=True)] = 0
    topics: list[OffsetCommitResponseTopic] = []

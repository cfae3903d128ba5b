"""OffsetForLeaderEpoch: where an epoch ended in the leader's log, to find where logs diverge."""

from __future__ import annotations

from typing import Annotated

from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Int16, Int32, Int64, String


@request(23, "2-4", flexible="4+", listeners="broker")
class OffsetForLeaderEpochRequest(Struct):
    class OffsetForLeaderTopic(Struct):
        topic: String = ""
        partitions: list[OffsetForLeaderEpochRequest.OffsetForLeaderPartition] = []

    class OffsetForLeaderPartition(Struct):
        partition: Int32 = 0
        current_leader_epoch: Int32 = -1
        leader_epoch: Int32 = 0

    replica_id: Annotated[Int32, Field("3+", ignorable=True)] = -2
    topics: list[OffsetForLeaderTopic] = []


@response(23, "2-4", flexible="4+")
class OffsetForLeaderEpochResponse(Struct):
    class OffsetForLeaderTopicResult(Struct):
        topic: String = ""
        partitions: list[OffsetForLeaderEpochResponse.EpochEndOffset] = []

    class EpochEndOffset(Struct):
        error_code: Int16 = 0
        partition: Int32 = 0
        leader_epoch: Int32 = -1
        end_offset: Int64 = -1

    throttle_time_ms: Int32 = 0
    topics: list[OffsetForLeaderTopicResult] = []

"""ListOffsets: offsets by timestamp, with negative timestamps for earliest, latest and others."""

from __future__ import annotations

from typing import Annotated

from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Int8, Int16, Int32, Int64, String


@request(2, "1-11", flexible="6+", listeners="broker")
class ListOffsetsRequest(Struct):
    class ListOffsetsTopic(Struct):
        name: String = ""
        partitions: list[ListOffsetsRequest.ListOffsetsPartition] = []

    class ListOffsetsPartition(Struct):
        partition_index: Int32 = 0
        current_leader_epoch: Annotated[Int32, Field("4+", ignorable=True)] = -1
        timestamp: Int64 = 0

    replica_id: Int32 = 0
    isolation_level: Annotated[Int8, Field("2+")] = 0
    topics: list[ListOffsetsTopic] = []
    timeout_ms: Annotated[Int32, Field("10+", ignorable=True)] = 0


@response(2, "1-11", flexible="6+")
class ListOffsetsResponse(Struct):
    class ListOffsetsTopicResponse(Struct):
        name: String = ""
        partitions: list[ListOffsetsResponse.ListOffsetsPartitionResponse] = []

    class ListOffsetsPartitionResponse(Struct):
        partition_index: Int32 = 0
        error_code: Int16 = 0
        timestamp: Int64 = -1
        offset: Int64 = -1
        leader_epoch: Annotated[Int32, Field("4+")] = -1

    throttle_time_ms: Annotated[Int32, Field("2+", ignorable=True)] = 0
    topics: list[ListOffsetsTopicResponse] = []

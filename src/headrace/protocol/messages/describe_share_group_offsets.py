"""DescribeShareGroupOffsets: start offsets (and from v1 the lag) of share groups."""

from __future__ import annotations

from typing import Annotated

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Int16, Int32, Int64, String, Uuid


@request(90, "0-1", flexible="0+", listeners="broker")
class DescribeShareGroupOffsetsRequest(Struct):
    class DescribeShareGroupOffsetsRequestGroup(Struct):
        group_id: String = ""
        topics: list[DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestTopic] | None = []

    class DescribeShareGroupOffsetsRequestTopic(Struct):
        topic_name: String = ""
        partitions: list[Int32] = []

    groups: list[DescribeShareGroupOffsetsRequestGroup] = []


@response(90, "0-1", flexible="0+")
class DescribeShareGroupOffsetsResponse(Struct):
    class DescribeShareGroupOffsetsResponseGroup(Struct):
        group_id: String = ""
        topics: list[DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseTopic] = []
        error_code: Int16 = 0
        error_message: String | None = None

    class DescribeShareGroupOffsetsResponseTopic(Struct):
        topic_name: String = ""
        topic_id: Uuid = ZERO_UUID
        partitions: list[DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponsePartition] = []

    class DescribeShareGroupOffsetsResponsePartition(Struct):
        partition_index: Int32 = 0
        start_offset: Int64 = 0
        leader_epoch: Int32 = 0
        lag: Annotated[Int64, Field("1+", ignorable=True)] = -1
        error_code: Int16 = 0
        error_message: String | None = None

    throttle_time_ms: Int32 = 0
    groups: list[DescribeShareGroupOffsetsResponseGroup] = []

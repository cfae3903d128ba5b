"""AlterShareGroupOffsets: set the start offsets of an empty share group."""

from __future__ import annotations

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Struct, request, response
from headrace.protocol.types import Int16, Int32, Int64, String, Uuid


@request(91, "0", flexible="0+", listeners="broker")
class AlterShareGroupOffsetsRequest(Struct):
    class AlterShareGroupOffsetsRequestTopic(Struct):
        topic_name: String = ""
        partitions: list[AlterShareGroupOffsetsRequest.AlterShareGroupOffsetsRequestPartition] = []

    class AlterShareGroupOffsetsRequestPartition(Struct):
        partition_index: Int32 = 0
        start_offset: Int64 = 0

    group_id: String = ""
    topics: list[AlterShareGroupOffsetsRequestTopic] = []


@response(91, "0", flexible="0+")
class AlterShareGroupOffsetsResponse(Struct):
    class AlterShareGroupOffsetsResponseTopic(Struct):
        topic_name: String = ""
        topic_id: Uuid = ZERO_UUID
        partitions: list[AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponsePartition] = []

    class AlterShareGroupOffsetsResponsePartition(Struct):
        partition_index: Int32 = 0
        error_code: Int16 = 0
        error_message: String | None = None

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = None
    responses: list[AlterShareGroupOffsetsResponseTopic] = []

"""OffsetDelete: forget offsets of topics that the group no longer reads."""

from __future__ import annotations

from headrace.protocol.declare import Struct, request, response
from headrace.protocol.types import Int16, Int32, String


@request(47, "0", listeners="broker")
class OffsetDeleteRequest(Struct):
    class OffsetDeleteRequestTopic(Struct):
        name: String = ""
        partitions: list[OffsetDeleteRequest.OffsetDeleteRequestPartition] = []

    class OffsetDeleteRequestPartition(Struct):
        partition_index: Int32 = 0

    group_id: String = ""
    topics: list[OffsetDeleteRequestTopic] = []


@response(47, "0")
class OffsetDeleteResponse(Struct):
    class OffsetDeleteResponseTopic(Struct):
        name: String = ""
        partitions: list[OffsetDeleteResponse.OffsetDeleteResponsePartition] = []

    class OffsetDeleteResponsePartition(Struct):
        partition_index: Int32 = 0
        error_code: Int16 = 0

    error_code: Int16 = 0
    throttle_time_ms: Int32 = 0
    topics: list[OffsetDeleteResponseTopic] = []

"""DeleteShareGroupState: the group coordinator has share-partition state removed."""

from __future__ import annotations

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Struct, request, response
from headrace.protocol.types import Int16, Int32, String, Uuid


@request(86, "0", flexible="0+", listeners="broker")
class DeleteShareGroupStateRequest(Struct):
    class DeleteStateData(Struct):
        topic_id: Uuid = ZERO_UUID
        partitions: list[DeleteShareGroupStateRequest.PartitionData] = []

    class PartitionData(Struct):
        partition: Int32 = 0

    group_id: String = ""
    topics: list[DeleteStateData] = []


@response(86, "0", flexible="0+")
class DeleteShareGroupStateResponse(Struct):
    class DeleteStateResult(Struct):
        topic_id: Uuid = ZERO_UUID
        partitions: list[DeleteShareGroupStateResponse.PartitionResult] = []

    class PartitionResult(Struct):
        partition: Int32 = 0
        error_code: Int16 = 0
        error_message: String | None = None

    results: list[DeleteStateResult] = []

"""InitializeShareGroupState: the group coordinator has share-partition state created."""

from __future__ import annotations

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Struct, request, response
from headrace.protocol.types import Int16, Int32, Int64, String, Uuid


@request(83, "0", flexible="0+", listeners="broker")
class InitializeShareGroupStateRequest(Struct):
    class InitializeStateData(Struct):
        topic_id: Uuid = ZERO_UUID
        partitions: list[InitializeShareGroupStateRequest.PartitionData] = []

    class PartitionData(Struct):
        partition: Int32 = 0
        state_epoch: Int32 = 0
        start_offset: Int64 = 0

    group_id: String = ""
    topics: list[InitializeStateData] = []


@response(83, "0", flexible="0+")
class InitializeShareGroupStateResponse(Struct):
    class InitializeStateResult(Struct):
        topic_id: Uuid = ZERO_UUID
        partitions: list[InitializeShareGroupStateResponse.PartitionResult] = []

    class PartitionResult(Struct):
        partition: Int32 = 0
        error_code: Int16 = 0
        error_message: String | None = None

    results: list[InitializeStateResult] = []

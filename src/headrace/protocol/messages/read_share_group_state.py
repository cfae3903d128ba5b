"""ReadShareGroupState: a partition leader loads share-partition state from the share coordinator."""

from __future__ import annotations

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Struct, request, response
from headrace.protocol.types import Int8, Int16, Int32, Int64, String, Uuid


@request(84, "0", flexible="0+", listeners="broker")
class ReadShareGroupStateRequest(Struct):
    class ReadStateData(Struct):
        topic_id: Uuid = ZERO_UUID
        partitions: list[ReadShareGroupStateRequest.PartitionData] = []

    class PartitionData(Struct):
        partition: Int32 = 0
        leader_epoch: Int32 = 0

    group_id: String = ""
    topics: list[ReadStateData] = []


@response(84, "0", flexible="0+")
class ReadShareGroupStateResponse(Struct):
    class ReadStateResult(Struct):
        topic_id: Uuid = ZERO_UUID
        partitions: list[ReadShareGroupStateResponse.PartitionResult] = []

    class PartitionResult(Struct):
        partition: Int32 = 0
        error_code: Int16 = 0
        error_message: String | None = None
        state_epoch: Int32 = 0
        start_offset: Int64 = 0
        state_batches: list[ReadShareGroupStateResponse.StateBatch] = []

    class StateBatch(Struct):
        first_offset: Int64 = 0
        last_offset: Int64 = 0
        delivery_state: Int8 = 0
        delivery_count: Int16 = 0

    results: list[ReadStateResult] = []

"""WriteShareGroupState: a partition leader persists share-partition state."""

from __future__ import annotations

from typing import Annotated

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Int8, Int16, Int32, Int64, String, Uuid


@request(85, "0-1", flexible="0+", listeners="broker")
class WriteShareGroupStateRequest(Struct):
    class WriteStateData(Struct):
        topic_id: Uuid = ZERO_UUID
        partitions: list[WriteShareGroupStateRequest.PartitionData] = []

    class PartitionData(Struct):
        partition: Int32 = 0
        state_epoch: Int32 = 0
        leader_epoch: Int32 = 0
        start_offset: Int64 = 0
        delivery_complete_count: Annotated[Int32, Field("1+", ignorable=True)] = -1
        state_batches: list[WriteShareGroupStateRequest.StateBatch] = []

    class StateBatch(Struct):
        first_offset: Int64 = 0
        last_offset: Int64 = 0
        delivery_state: Int8 = 0
        delivery_count: Int16 = 0

    group_id: String = ""
    topics: list[WriteStateData] = []


@response(85, "0-1", flexible="0+")
class WriteShareGroupStateResponse(Struct):
    class WriteStateResult(Struct):
        topic_id: Uuid = ZERO_UUID
        partitions: list[WriteShareGroupStateResponse.PartitionResult] = []

    class PartitionResult(Struct):
        partition: Int32 = 0
        error_code: Int16 = 0
        error_message: String | None = None

    results: list[WriteStateResult] = []

"""ReadShareGroupStateSummary: start offsets of share partitions without their batches."""

from __future__ import annotations

from typing import Annotated

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Int16, Int32, Int64, String, Uuid


@request(87, "0-1", flexible="0+", listeners="broker")
class ReadShareGroupStateSummaryRequest(Struct):
    class ReadStateSummaryData(Struct):
        topic_id: Uuid = ZERO_UUID
        partitions: list[ReadShareGroupStateSummaryRequest.PartitionData] = []

    class PartitionData(Struct):
        partition: Int32 = 0
        leader_epoch: Int32 = 0

    group_id: String = ""
    topics: list[ReadStateSummaryData] = []


@response(87, "0-1", flexible="0+")
class ReadShareGroupStateSummaryResponse(Struct):
    class ReadStateSummaryResult(Struct):
        topic_id: Uuid = ZERO_UUID
        partitions: list[ReadShareGroupStateSummaryResponse.PartitionResult] = []

    class PartitionResult(Struct):
        partition: Int32 = 0
        error_code: Int16 = 0
        error_message: String | None = None
        state_epoch: Int32 = 0
        leader_epoch: Int32 = 0
        start_offset: Int64 = 0
        delivery_complete_count: Annotated[Int32, Field("1+", ignorable=True)] = -1

    results: list[ReadStateSummaryResult] = []

"""DeleteRecords: move the start of a partition's log forward."""

from __future__ import annotations

from headrace.protocol.declare import Struct, request, response
from headrace.protocol.types import Int16, Int32, Int64, String


@request(21, "0-2", flexible="2+", listeners="broker")
class DeleteRecordsRequest(Struct):
    class DeleteRecordsTopic(Struct):
        name: String = ""
        partitions: list[DeleteRecordsRequest.DeleteRecordsPartition] = []

    class DeleteRecordsPartition(Struct):
        partition_index: Int32 = 0
        offset: Int64 = 0

    topics: list[DeleteRecordsTopic] = []
    timeout_ms: Int32 = 0


@response(21, "0-2", flexible="2+")
class DeleteRecordsResponse(Struct):
    class DeleteRecordsTopicResult(Struct):
        name: String = ""
        partitions: list[DeleteRecordsResponse.DeleteRecordsPartitionResult] = []

    class DeleteRecordsPartitionResult(Struct):
        partition_index: Int32 = 0
        low_watermark: Int64 = 0
        error_code: Int16 = 0

    throttle_time_ms: Int32 = 0
    topics: list[DeleteRecordsTopicResult] = []

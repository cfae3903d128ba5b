"""CreatePartitions: grow topics; partitions never shrink."""

from __future__ import annotations

from headrace.protocol.declare import Struct, request, response
from headrace.protocol.types import Bool, Int16, Int32, String


@request(37, "0-3", flexible="2+", listeners="broker controller")
class CreatePartitionsRequest(Struct):
    class CreatePartitionsTopic(Struct):
        name: String = ""
        count: Int32 = 0
        assignments: list[CreatePartitionsRequest.CreatePartitionsAssignment] | None = []

    class CreatePartitionsAssignment(Struct):
        broker_ids: list[Int32] = []

    topics: list[CreatePartitionsTopic] = []
    timeout_ms: Int32 = 0
    validate_only: Bool = False


@response(37, "0-3", flexible="2+")
class CreatePartitionsResponse(Struct):
    class CreatePartitionsTopicResult(Struct):
        name: String = ""
        error_code: Int16 = 0
        error_message: String | None = None

    throttle_time_ms: Int32 = 0
    results: list[CreatePartitionsTopicResult] = []

"""AlterPartitionReassignments: start, replace or (with null replicas) cancel the moving of replicas."""

from __future__ import annotations

from typing import Annotated

from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Bool, Int16, Int32, String


@request(45, "0-1", flexible="0+", listeners="broker controller")
class AlterPartitionReassignmentsRequest(Struct):
    class ReassignableTopic(Struct):
        name: String = ""
        partitions: list[AlterPartitionReassignmentsRequest.ReassignablePartition] = []

    class ReassignablePartition(Struct):
        partition_index: Int32 = 0
        replicas: list[Int32] | None = None

    timeout_ms: Int32 = 60000
    allow_replication_factor_change: Annotated[Bool, Field("1+")] = True
    topics: list[ReassignableTopic] = []


@response(45, "0-1", flexible="0+")
class AlterPartitionReassignmentsResponse(Struct):
    class ReassignableTopicResponse(Struct):
        name: String = ""
        partitions: list[AlterPartitionReassignmentsResponse.ReassignablePartitionResponse] = []

    class ReassignablePartitionResponse(Struct):
        partition_index: Int32 = 0
        error_code: Int16 = 0
        error_message: String | None = ""

    throttle_time_ms: Int32 = 0
    allow_replication_factor_change: Annotated[Bool, Field("1+", ignorable=True)] = True
    error_code: Int16 = 0
    error_message: String | None = ""
    responses: list[ReassignableTopicResponse] = []

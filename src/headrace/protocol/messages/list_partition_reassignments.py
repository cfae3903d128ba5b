"""ListPartitionReassignments: replicas that are being added or removed."""

from __future__ import annotations

from headrace.protocol.declare import Struct, request, response
from headrace.protocol.types import Int16, Int32, String


@request(46, "0", flexible="0+", listeners="broker controller")
class ListPartitionReassignmentsRequest(Struct):
    class ListPartitionReassignmentsTopics(Struct):
        name: String = ""
        partition_indexes: list[Int32] = []

    timeout_ms: Int32 = 60000
    topics: list[ListPartitionReassignmentsTopics] | None = None


@response(46, "0", flexible="0+")
class ListPartitionReassignmentsResponse(Struct):
    class OngoingTopicReassignment(Struct):
        name: String = ""
        partitions: list[ListPartitionReassignmentsResponse.OngoingPartitionReassignment] = []

    class OngoingPartitionReassignment(Struct):
        partition_index: Int32 = 0
        replicas: list[Int32] = []
        adding_replicas: list[Int32] = []
        removing_replicas: list[Int32] = []

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
    topics: list[OngoingTopicReassignment] = []

"""ElectLeaders: preferred or unclean elections; null means every partition."""

from __future__ import annotations

from typing import Annotated

from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Int8, Int16, Int32, String


@request(43, "0-2", flexible="2+", listeners="broker controller")
class ElectLeadersRequest(Struct):
    class TopicPartitions(Struct):
        topic: String = ""
        partitions: list[Int32] = []

    election_type: Annotated[Int8, Field("1+")] = 0
    topic_partitions: list[TopicPartitions] | None = []
    timeout_ms: Int32 = 60000


@response(43, "0-2", flexible="2+")
class ElectLeadersResponse(Struct):
    class ReplicaElectionResult(Struct):
        topic: String = ""
        partition_result: list[ElectLeadersResponse.PartitionResult] = []

    class PartitionResult(Struct):
        partition_id: Int32 = 0
        error_code: Int16 = 0
        error_message: String | None = ""

    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, Field("1+")] = 0
    replica_election_results: list[ReplicaElectionResult] = []

"""AlterReplicaLogDirs: move replicas between the log directories of the broker that is asked."""

from __future__ import annotations

from headrace.protocol.declare import Struct, request, response
from headrace.protocol.types import Int16, Int32, String


@request(34, "1-2", flexible="2+", listeners="broker")
class AlterReplicaLogDirsRequest(Struct):
    class AlterReplicaLogDir(Struct):
        path: String = ""
        topics: list[AlterReplicaLogDirsRequest.AlterReplicaLogDirTopic] = []

    class AlterReplicaLogDirTopic(Struct):
        name: String = ""
        partitions: list[Int32] = []

    dirs: list[AlterReplicaLogDir] = []


@response(34, "1-2", flexible="2+")
class AlterReplicaLogDirsResponse(Struct):
    class AlterReplicaLogDirTopicResult(Struct):
        topic_name: String = ""
        partitions: list[AlterReplicaLogDirsResponse.AlterReplicaLogDirPartitionResult] = []

    class AlterReplicaLogDirPartitionResult(Struct):
        partition_index: Int32 = 0
        error_code: Int16 = 0

    throttle_time_ms: Int32 = 0
    results: list[AlterReplicaLogDirTopicResult] = []

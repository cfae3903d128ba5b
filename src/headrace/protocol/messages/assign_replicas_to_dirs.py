"""AssignReplicasToDirs: a broker tells the controller which of its directories hold which replicas (KIP-858)."""

from __future__ import annotations

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Struct, request, response
from headrace.protocol.types import Int16, Int32, Int64, Uuid


@request(73, "0", flexible="0+", listeners="controller")
class AssignReplicasToDirsRequest(Struct):
    class DirectoryData(Struct):
        id: Uuid = ZERO_UUID
        topics: list[AssignReplicasToDirsRequest.TopicData] = []

    class TopicData(Struct):
        topic_id: Uuid = ZERO_UUID
        partitions: list[AssignReplicasToDirsRequest.PartitionData] = []

    class PartitionData(Struct):
        partition_index: Int32 = 0

    broker_id: Int32 = 0
    broker_epoch: Int64 = -1
    directories: list[DirectoryData] = []


@response(73, "0", flexible="0+")
class AssignReplicasToDirsResponse(Struct):
    class DirectoryData(Struct):
        id: Uuid = ZERO_UUID
        topics: list[AssignReplicasToDirsResponse.TopicData] = []

    class TopicData(Struct):
        topic_id: Uuid = ZERO_UUID
        partitions: list[AssignReplicasToDirsResponse.PartitionData] = []

    class PartitionData(Struct):
        partition_index: Int32 = 0
        error_code: Int16 = 0

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    directories: list[DirectoryData] = []

"""EndQuorumEpoch: a quorum leader resigns and names preferred successors."""

from __future__ import annotations

from typing import Annotated

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Int16, Int32, String, Uint16, Uuid


@request(54, "0-1", flexible="1+", listeners="controller")
class EndQuorumEpochRequest(Struct):
    class TopicData(Struct):
        topic_name: String = ""
        partitions: list[EndQuorumEpochRequest.PartitionData] = []

    class PartitionData(Struct):
        partition_index: Int32 = 0
        leader_id: Int32 = 0
        leader_epoch: Int32 = 0
        preferred_successors: Annotated[list[Int32], Field("0", ignorable=True)] = []
        preferred_candidates: Annotated[list[EndQuorumEpochRequest.ReplicaInfo], Field("1+", ignorable=True)] = []

    class ReplicaInfo(Struct):
        candidate_id: Int32 = 0
        candidate_directory_id: Uuid = ZERO_UUID

    class LeaderEndpoint(Struct):
        name: String = ""
        host: String = ""
        port: Uint16 = 0

    cluster_id: String | None = None
    topics: list[TopicData] = []
    leader_endpoints: Annotated[list[LeaderEndpoint], Field("1+", ignorable=True)] = []


@response(54, "0-1", flexible="1+")
class EndQuorumEpochResponse(Struct):
    class TopicData(Struct):
        topic_name: String = ""
        partitions: list[EndQuorumEpochResponse.PartitionData] = []

    class PartitionData(Struct):
        partition_index: Int32 = 0
        error_code: Int16 = 0
        leader_id: Int32 = 0
        leader_epoch: Int32 = 0

    class NodeEndpoint(Struct):
        node_id: Int32 = 0
        host: String = ""
        port: Uint16 = 0

    error_code: Int16 = 0
    topics: list[TopicData] = []
    node_endpoints: Annotated[list[NodeEndpoint], Field("1+", tag=0)] = []

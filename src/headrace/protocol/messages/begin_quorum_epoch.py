"""BeginQuorumEpoch: a new quorum leader announces itself to the voters."""

from __future__ import annotations

from typing import Annotated

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Int16, Int32, String, Uint16, Uuid


@request(53, "0-1", flexible="1+", listeners="controller")
class BeginQuorumEpochRequest(Struct):
    class TopicData(Struct):
        topic_name: String = ""
        partitions: list[BeginQuorumEpochRequest.PartitionData] = []

    class PartitionData(Struct):
        partition_index: Int32 = 0
        voter_directory_id: Annotated[Uuid, Field("1+", ignorable=True)] = ZERO_UUID
        leader_id: Int32 = 0
        leader_epoch: Int32 = 0

    class LeaderEndpoint(Struct):
        name: String = ""
        host: String = ""
        port: Uint16 = 0

    cluster_id: String | None = None
    voter_id: Annotated[Int32, Field("1+", ignorable=True)] = -1
    topics: list[TopicData] = []
    leader_endpoints: Annotated[list[LeaderEndpoint], Field("1+", ignorable=True)] = []


@response(53, "0-1", flexible="1+")
class BeginQuorumEpochResponse(Struct):
    class TopicData(Struct):
        topic_name: String = ""
        partitions: list[BeginQuorumEpochResponse.PartitionData] = []

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

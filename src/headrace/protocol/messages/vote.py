"""Vote: a candidate asks a voter for its vote; v2 has the pre-vote."""

from __future__ import annotations

from typing import Annotated

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Bool, Int16, Int32, Int64, String, Uint16, Uuid


@request(52, "0-2", flexible="0+", listeners="controller")
class VoteRequest(Struct):
    class TopicData(Struct):
        topic_name: String = ""
        partitions: list[VoteRequest.PartitionData] = []

    class PartitionData(Struct):
        partition_index: Int32 = 0
        replica_epoch: Int32 = 0
        replica_id: Int32 = 0
        replica_directory_id: Annotated[Uuid, Field("1+", ignorable=True)] = ZERO_UUID
        voter_directory_id: Annotated[Uuid, Field("1+", ignorable=True)] = ZERO_UUID
        last_offset_epoch: Int32 = 0
        last_offset: Int64 = 0
        pre_vote: Annotated[Bool, Field("2+")] = False

    cluster_id: String | None = None
    voter_id: Annotated[Int32, Field("1+", ignorable=True)] = -1
    topics: list[TopicData] = []


@response(52, "0-2", flexible="0+")
class VoteResponse(Struct):
    class TopicData(Struct):
        topic_name: String = ""
        partitions: list[VoteResponse.PartitionData] = []

    class PartitionData(Struct):
        partition_index: Int32 = 0
        error_code: Int16 = 0
        leader_id: Int32 = 0
        leader_epoch: Int32 = 0
        vote_granted: Bool = False

    class NodeEndpoint(Struct):
        node_id: Int32 = 0
        host: String = ""
        port: Uint16 = 0

    error_code: Int16 = 0
    topics: list[TopicData] = []
    node_endpoints: Annotated[list[NodeEndpoint], Field("1+", tag=0)] = []

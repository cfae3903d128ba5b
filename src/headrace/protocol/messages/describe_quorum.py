"""DescribeQuorum: leader, epoch and the progress of voters and observers."""

from __future__ import annotations

from typing import Annotated

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Int16, Int32, Int64, String, Uint16, Uuid


@request(55, "0-2", flexible="0+", listeners="broker controller")
class DescribeQuorumRequest(Struct):
    class TopicData(Struct):
        topic_name: String = ""
        partitions: list[DescribeQuorumRequest.PartitionData] = []

    class PartitionData(Struct):
        partition_index: Int32 = 0

    topics: list[TopicData] = []


@response(55, "0-2", flexible="0+")
class DescribeQuorumResponse(Struct):
    class TopicData(Struct):
        topic_name: String = ""
        partitions: list[DescribeQuorumResponse.PartitionData] = []

    class PartitionData(Struct):
        partition_index: Int32 = 0
        error_code: Int16 = 0
        error_message: Annotated[String | None, Field("2+", ignorable=True)] = ""
        leader_id: Int32 = 0
        leader_epoch: Int32 = 0
        high_watermark: Int64 = 0
        current_voters: list[DescribeQuorumResponse.ReplicaState] = []
        observers: list[DescribeQuorumResponse.ReplicaState] = []

    class ReplicaState(Struct):
        replica_id: Int32 = 0
        replica_directory_id: Annotated[Uuid, Field("2+")] = ZERO_UUID
        log_end_offset: Int64 = 0
        last_fetch_timestamp: Annotated[Int64, Field("1+", ignorable=True)] = -1
        last_caught_up_timestamp: Annotated[Int64, Field("1+", ignorable=True)] = -1

    class Node(Struct):
        node_id: Int32 = 0
        listeners: list[DescribeQuorumResponse.Listener] = []

    class Listener(Struct):
        name: String = ""
        host: String = ""
        port: Uint16 = 0

    error_code: Int16 = 0
    error_message: Annotated[String | None, Field("2+", ignorable=True)] = ""
    topics: list[TopicData] = []
    nodes: Annotated[list[Node], Field("2+")] = []

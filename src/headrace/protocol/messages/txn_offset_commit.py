"""TxnOffsetCommit: positions that become visible when the transaction commits."""

from __future__ import annotations

from typing import Annotated

from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Int16, Int32, Int64, String


@request(28, "0-5", flexible="3+", listeners="broker")
class TxnOffsetCommitRequest(Struct):
    class TxnOffsetCommitRequestTopic(Struct):
        name: String = ""
        partitions: list[TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition] = []

    class TxnOffsetCommitRequestPartition(Struct):
        partition_index: Int32 = 0
        committed_offset: Int64 = 0
        committed_leader_epoch: Annotated[Int32, Field("2+", ignorable=True)] = -1
        committed_metadata: String | None = ""

    transactional_id: String = ""
    group_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    generation_id: Annotated[Int32, Field("3+")] = -1
    member_id: Annotated[String, Field("3+")] = ""
    group_instance_id: Annotated[String | None, Field("3+")] = None
    topics: list[TxnOffsetCommitRequestTopic] = []


@response(28, "0-5", flexible="3+")
class TxnOffsetCommitResponse(Struct):
    class TxnOffsetCommitResponseTopic(Struct):
        name: String = ""
        partitions: list[TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition] = []

    class TxnOffsetCommitResponsePartition(Struct):
        partition_index: Int32 = 0
        error_code: Int16 = 0

    throttle_time_ms: Int32 = 0
    topics: list[TxnOffsetCommitResponseTopic] = []

"""OffsetFetch: committed positions of one group (v1-7) or several (v8+); topic ids from v10."""

from __future__ import annotations

from typing import Annotated

from headrace.base.ids import ZERO_UUID
from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Bool, Int16, Int32, Int64, String, Uuid


@request(9, "1-10", flexible="6+", listeners="broker")
class OffsetFetchRequest(Struct):
    class OffsetFetchRequestTopic(Struct):
        name: String = ""
        partition_indexes: list[Int32] = []

    class OffsetFetchRequestGroup(Struct):
        group_id: String = ""
        member_id: Annotated[String | None, Field("9+", ignorable=True)] = None
        member_epoch: Annotated[Int32, Field("9+", ignorable=True)] = -1
        topics: list[OffsetFetchRequest.OffsetFetchRequestTopics] | None = []

    class OffsetFetchRequestTopics(Struct):
        name: Annotated[String, Field("8-9", ignorable=True)] = ""
        topic_id: Annotated[Uuid, Field("10+", ignorable=True)] = ZERO_UUID
        partition_indexes: list[Int32] = []

    group_id: Annotated[String, Field("1-7")] = ""
    topics: Annotated[list[OffsetFetchRequestTopic] | None, Field("1-7", nullable="2-7")] = []
    groups: Annotated[list[OffsetFetchRequestGroup], Field("8+")] = []
    require_stable: Annotated[Bool, Field("7+")] = False


@response(9, "1-10", flexible="6+")
class OffsetFetchResponse(Struct):
    class OffsetFetchResponseTopic(Struct):
        name: String = ""
        partitions: list[OffsetFetchResponse.OffsetFetchResponsePartition] = []

    class OffsetFetchResponsePartition(Struct):
        partition_index: Int32 = 0
        committed_offset: Int64 = 0
        committed_leader_epoch: Annotated[Int32, Field("5-7", ignorable=True)] = -1
        metadata: String | None = ""
        error_code: Int16 = 0

    class OffsetFetchResponseGroup(Struct):
        group_id: String = ""
        topics: list[OffsetFetchResponse.OffsetFetchResponseTopics] = []
        error_code: Int16 = 0

    class OffsetFetchResponseTopics(Struct):
        name: Annotated[String, Field("8-9", ignorable=True)] = ""
        topic_id: Annotated[Uuid, Field("10+", ignorable=True)] = ZERO_UUID
        partitions: list[OffsetFetchResponse.OffsetFetchResponsePartitions] = []

    class OffsetFetchResponsePartitions(Struct):
        partition_index: Int32 = 0
        committed_offset: Int64 = 0
        committed_leader_epoch: Int32 = -1
        metadata: String | None = ""
        error_code: Int16 = 0

    throttle_time_ms: Annotated[Int32, Field("3+", ignorable=True)] = 0
    topics: Annotated[list[OffsetFetchResponseTopic], Field("1-7")] = []
    error_code: Annotated[Int16, Field("2-7", ignorable=True)] = 0
    groups: Annotated[list[OffsetFetchResponseGroup], Field("8+")] = []

"""SyncGroup: second phase of a classic rebalance: the leader hands in assignments, everyone gets its own."""

from __future__ import annotations

from typing import Annotated

from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Bytes, Int16, Int32, String


@request(14, "0-5", flexible="4+", listeners="broker")
class SyncGroupRequest(Struct):
    class SyncGroupRequestAssignment(Struct):
        member_id: String = ""
        assignment: Bytes = b""

    group_id: String = ""
    generation_id: Int32 = 0
    member_id: String = ""
    group_instance_id: Annotated[String | None, Field("3+")] = None
    protocol_type: Annotated[String | None, Field("5+", ignorable=True)] = None
    protocol_name: Annotated[String | None, Field("5+", ignorable=True)] = None
    assignments: list[SyncGroupRequestAssignment] = []


@response(14, "0-5", flexible="4+")
class SyncGroupResponse(Struct):
    throttle_time_ms: Annotated[Int32, Field("1+", ignorable=True)] = 0
    error_code: Int16 = 0
    protocol_type: Annotated[String | None, Field("5+", ignorable=True)] = None
    protocol_name: Annotated[String | None, Field("5+", ignorable=True)] = None
    assignment: Bytes = b""

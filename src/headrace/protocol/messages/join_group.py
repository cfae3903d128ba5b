"""JoinGroup: first phase of a classic rebalance."""

from __future__ import annotations

from typing import Annotated

from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Bool, Bytes, Int16, Int32, String


@request(11, "0-9", flexible="6+", listeners="broker")
class JoinGroupRequest(Struct):
    class JoinGroupRequestProtocol(Struct):
        name: String = ""
        metadata: Bytes = b""

    group_id: String = ""
    session_timeout_ms: Int32 = 0
    rebalance_timeout_ms: Annotated[Int32, Field("1+", ignorable=True)] = -1
    member_id: String = ""
    group_instance_id: Annotated[String | None, Field("5+")] = None
    protocol_type: String = ""
    protocols: list[JoinGroupRequestProtocol] = []
    reason: Annotated[String | None, Field("8+", ignorable=True)] = None


@response(11, "0-9", flexible="6+")
class JoinGroupResponse(Struct):
    class JoinGroupResponseMember(Struct):
        member_id: String = ""
        group_instance_id: Annotated[String | None, Field("5+", ignorable=True)] = None
        metadata: Bytes = b""

    throttle_time_ms: Annotated[Int32, Field("2+", ignorable=True)] = 0
    error_code: Int16 = 0
    generation_id: Int32 = -1
    protocol_type: Annotated[String | None, Field("7+", ignorable=True)] = None
    protocol_name: Annotated[String | None, Field(nullable="7+")] = ""
    leader: String = ""
    skip_assignment: Annotated[Bool, Field("9+")] = False
    member_id: String = ""
    members: list[JoinGroupResponseMember] = []

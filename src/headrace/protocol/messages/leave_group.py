"""LeaveGroup: one classic member (v0-2) or several (v3+) leave."""

from __future__ import annotations

from typing import Annotated

from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Int16, Int32, String


@request(13, "0-5", flexible="4+", listeners="broker")
class LeaveGroupRequest(Struct):
    class MemberIdentity(Struct):
        member_id: String = ""
        group_instance_id: String | None = None
        reason: Annotated[String | None, Field("5+", ignorable=True)] = None

    group_id: String = ""
    member_id: Annotated[String, Field("0-2")] = ""
    members: Annotated[list[MemberIdentity], Field("3+")] = []


@response(13, "0-5", flexible="4+")
class LeaveGroupResponse(Struct):
    class MemberResponse(Struct):
        member_id: String = ""
        group_instance_id: String | None = ""
        error_code: Int16 = 0

    throttle_time_ms: Annotated[Int32, Field("1+", ignorable=True)] = 0
    error_code: Int16 = 0
    members: Annotated[list[MemberResponse], Field("3+")] = []

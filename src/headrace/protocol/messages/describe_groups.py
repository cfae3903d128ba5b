"""DescribeGroups: state, protocol and members of classic groups."""

from __future__ import annotations

from typing import Annotated

from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Bool, Bytes, Int16, Int32, String


@request(15, "0-6", flexible="5+", listeners="broker")
class DescribeGroupsRequest(Struct):
    groups: list[String] = []
    include_authorized_operations: Annotated[Bool, Field("3+")] = False


@response(15, "0-6", flexible="5+")
class DescribeGroupsResponse(Struct):
    class DescribedGroup(Struct):
        error_code: Int16 = 0
        error_message: Annotated[String | None, Field("6+")] = None
        group_id: String = ""
        group_state: String = ""
        protocol_type: String = ""
        protocol_data: String = ""
        members: list[DescribeGroupsResponse.DescribedGroupMember] = []
        authorized_operations: Annotated[Int32, Field("3+")] = -(2**31)

    class DescribedGroupMember(Struct):
        member_id: String = ""
        group_instance_id: Annotated[String | None, Field("4+", ignorable=True)] = None
        client_id: String = ""
        client_host: String = ""
        member_metadata: Bytes = b""
        member_assignment: Bytes = b""

    throttle_time_ms: Annotated[Int32, Field("1+", ignorable=True)] = 0
    groups: list[DescribedGroup] = []

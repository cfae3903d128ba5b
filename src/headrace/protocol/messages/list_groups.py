"""ListGroups: the groups that this broker coordinates, filtered by state and type."""

from __future__ import annotations

from typing import Annotated

from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Int16, Int32, String


@request(16, "0-5", flexible="3+", listeners="broker")
class ListGroupsRequest(Struct):
    states_filter: Annotated[list[String], Field("4+")] = []
    types_filter: Annotated[list[String], Field("5+")] = []


@response(16, "0-5", flexible="3+")
class ListGroupsResponse(Struct):
    class ListedGroup(Struct):
        group_id: String = ""
        protocol_type: String = ""
        group_state: Annotated[String, Field("4+", ignorable=True)] = ""
        group_type: Annotated[String, Field("5+", ignorable=True)] = ""

    throttle_time_ms: Annotated[Int32, Field("1+", ignorable=True)] = 0
    error_code: Int16 = 0
    groups: list[ListedGroup] = []

"""DeleteGroups: remove empty groups and their offsets."""

from __future__ import annotations

from headrace.protocol.declare import Struct, request, response
from headrace.protocol.types import Int16, Int32, String


@request(42, "0-2", flexible="2+", listeners="broker")
class DeleteGroupsRequest(Struct):
    groups_names: list[String] = []


@response(42, "0-2", flexible="2+")
class DeleteGroupsResponse(Struct):
    class DeletableGroupResult(Struct):
        group_id: String = ""
        error_code: Int16 = 0

    throttle_time_ms: Int32 = 0
    results: list[DeletableGroupResult] = []

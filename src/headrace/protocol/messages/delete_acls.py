"""DeleteAcls: remove what the filters match, and say what that was."""

from __future__ import annotations

from headrace.protocol.declare import Struct, request, response
from headrace.protocol.types import Int8, Int16, Int32, String


@request(31, "1-3", flexible="2+", listeners="broker controller")
class DeleteAclsRequest(Struct):
    class DeleteAclsFilter(Struct):
        resource_type_filter: Int8 = 0
        resource_name_filter: String | None = ""
        pattern_type_filter: Int8 = 3
        principal_filter: String | None = ""
        host_filter: String | None = ""
        operation: Int8 = 0
        permission_type: Int8 = 0

    filters: list[DeleteAclsFilter] = []


@response(31, "1-3", flexible="2+")
class DeleteAclsResponse(Struct):
    class DeleteAclsFilterResult(Struct):
        error_code: Int16 = 0
        error_message: String | None = ""
        matching_acls: list[DeleteAclsResponse.DeleteAclsMatchingAcl] = []

    class DeleteAclsMatchingAcl(Struct):
        error_code: Int16 = 0
        error_message: String | None = ""
        resource_type: Int8 = 0
        resource_name: String = ""
        pattern_type: Int8 = 3
        principal: String = ""
        host: String = ""
        operation: Int8 = 0
        permission_type: Int8 = 0

    throttle_time_ms: Int32 = 0
    filter_results: list[DeleteAclsFilterResult] = []

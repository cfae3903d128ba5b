"""DescribeAcls: the ACL bindings that one filter matches."""

from __future__ import annotations

from headrace.protocol.declare import Struct, request, response
from headrace.protocol.types import Int8, Int16, Int32, String


@request(29, "1-3", flexible="2+", listeners="broker controller")
class DescribeAclsRequest(Struct):
    resource_type_filter: Int8 = 0
    resource_name_filter: String | None = ""
    pattern_type_filter: Int8 = 3
    principal_filter: String | None = ""
    host_filter: String | None = ""
    operation: Int8 = 0
    permission_type: Int8 = 0


@response(29, "1-3", flexible="2+")
class DescribeAclsResponse(Struct):
    class DescribeAclsResource(Struct):
        resource_type: Int8 = 0
        resource_name: String = ""
        pattern_type: Int8 = 3
        acls: list[DescribeAclsResponse.AclDescription] = []

    class AclDescription(Struct):
        principal: String = ""
        host: String = ""
        operation: Int8 = 0
        permission_type: Int8 = 0

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
    resources: list[DescribeAclsResource] = []

"""CreateAcls: add ACL bindings."""

from __future__ import annotations

from headrace.protocol.declare import Struct, request, response
from headrace.protocol.types import Int8, Int16, Int32, String


@request(30, "1-3", flexible="2+", listeners="broker controller")
class CreateAclsRequest(Struct):
    class AclCreation(Struct):
        resource_type: Int8 = 0
        resource_name: String = ""
        resource_pattern_type: Int8 = 3
        principal: String = ""
        host: String = ""
        operation: Int8 = 0
        permission_type: Int8 = 0

    creations: list[AclCreation] = []


@response(30, "1-3", flexible="2+")
class CreateAclsResponse(Struct):
    class AclCreationResult(Struct):
        error_code: Int16 = 0
        error_message: String | None = ""

    throttle_time_ms: Int32 = 0
    results: list[AclCreationResult] = []

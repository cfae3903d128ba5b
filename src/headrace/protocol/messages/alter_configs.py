"""AlterConfigs: replace all dynamic configs of a resource; IncrementalAlterConfigs is the newer call."""

from __future__ import annotations

from headrace.protocol.declare import Struct, request, response
from headrace.protocol.types import Bool, Int8, Int16, Int32, String


@request(33, "0-2", flexible="2+", listeners="broker controller")
class AlterConfigsRequest(Struct):
    class AlterConfigsResource(Struct):
        resource_type: Int8 = 0
        resource_name: String = ""
        configs: list[AlterConfigsRequest.AlterableConfig] = []

    class AlterableConfig(Struct):
        name: String = ""
        value: String | None = ""

    resources: list[AlterConfigsResource] = []
    validate_only: Bool = False


@response(33, "0-2", flexible="2+")
class AlterConfigsResponse(Struct):
    class AlterConfigsResourceResponse(Struct):
        error_code: Int16 = 0
        error_message: String | None = ""
        resource_type: Int8 = 0
        resource_name: String = ""

    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = []

"""IncrementalAlterConfigs: set, delete, append to or subtract from single configs."""

from __future__ import annotations

from headrace.protocol.declare import Struct, request, response
from headrace.protocol.types import Bool, Int8, Int16, Int32, String


@request(44, "0-1", flexible="1+", listeners="broker controller")
class IncrementalAlterConfigsRequest(Struct):
    class AlterConfigsResource(Struct):
        resource_type: Int8 = 0
        resource_name: String = ""
        configs: list[IncrementalAlterConfigsRequest.AlterableConfig] = []

    class AlterableConfig(Struct):
        name: String = ""
        config_operation: Int8 = 0
        value: String | None = ""

    resources: list[AlterConfigsResource] = []
    validate_only: Bool = False


@response(44, "0-1", flexible="1+")
class IncrementalAlterConfigsResponse(Struct):
    class AlterConfigsResourceResponse(Struct):
        error_code: Int16 = 0
        error_message: String | None = ""
        resource_type: Int8 = 0
        resource_name: String = ""

    throttle_time_ms: Int32 = 0
    responses: list[AlterConfigsResourceResponse] = []

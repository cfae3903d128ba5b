"""ListConfigResources: names of resources that have configs; v0 knows client metrics only."""

from __future__ import annotations

from typing import Annotated

from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Int8, Int16, Int32, String


@request(74, "0-1", flexible="0+", listeners="broker")
class ListConfigResourcesRequest(Struct):
    resource_types: Annotated[list[Int8], Field("1+")] = []


@response(74, "0-1", flexible="0+")
class ListConfigResourcesResponse(Struct):
    class ConfigResource(Struct):
        resource_name: String = ""
        resource_type: Annotated[Int8, Field("1+", ignorable=True)] = 16

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    config_resources: list[ConfigResource] = []

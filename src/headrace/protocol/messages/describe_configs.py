"""DescribeConfigs: configs of resources, with sources, synonyms and documentation on demand."""

from __future__ import annotations

from typing import Annotated

from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Bool, Int8, Int16, Int32, String


@request(32, "1-4", flexible="4+", listeners="broker controller")
class DescribeConfigsRequest(Struct):
    class DescribeConfigsResource(Struct):
        resource_type: Int8 = 0
        resource_name: String = ""
        configuration_keys: list[String] | None = []

    resources: list[DescribeConfigsResource] = []
    include_synonyms: Bool = False
    include_documentation: Annotated[Bool, Field("3+")] = False


@response(32, "1-4", flexible="4+")
class DescribeConfigsResponse(Struct):
    class DescribeConfigsResult(Struct):
        error_code: Int16 = 0
        error_message: String | None = ""
        resource_type: Int8 = 0
        resource_name: String = ""
        configs: list[DescribeConfigsResponse.DescribeConfigsResourceResult] = []

    class DescribeConfigsResourceResult(Struct):
        name: String = ""
        value: String | None = ""
        read_only: Bool = False
        config_source: Int8 = -1
        is_sensitive: Bool = False
        synonyms: list[DescribeConfigsResponse.DescribeConfigsSynonym] = []
        config_type: Annotated[Int8, Field("3+", ignorable=True)] = 0
        documentation: Annotated[String | None, Field("3+", ignorable=True)] = ""

    class DescribeConfigsSynonym(Struct):
        name: String = ""
        value: String | None = ""
        source: Int8 = 0

    throttle_time_ms: Int32 = 0
    results: list[DescribeConfigsResult] = []

"""ApiVersions: which APIs and features a listener offers; the first thing most clients ask."""

from __future__ import annotations

from typing import Annotated

from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Bool, Int16, Int32, Int64, String


@request(18, "0-4", flexible="3+", listeners="broker controller")
class ApiVersionsRequest(Struct):
    client_software_name: Annotated[String, Field("3+", ignorable=True)] = ""
    client_software_version: Annotated[String, Field("3+", ignorable=True)] = ""


@response(18, "0-4", flexible="3+")
class ApiVersionsResponse(Struct):
    class ApiVersion(Struct):
        api_key: Int16 = 0
        min_version: Int16 = 0
        max_version: Int16 = 0

    class SupportedFeatureKey(Struct):
        name: String = ""
        min_version: Int16 = 0
        max_version: Int16 = 0

    class FinalizedFeatureKey(Struct):
        name: String = ""
        max_version_level: Int16 = 0
        min_version_level: Int16 = 0

    error_code: Int16 = 0
    api_keys: list[ApiVersion] = []
    throttle_time_ms: Annotated[Int32, Field("1+", ignorable=True)] = 0
    supported_features: Annotated[list[SupportedFeatureKey], Field("3+", tag=0, ignorable=True)] = []
    finalized_features_epoch: Annotated[Int64, Field("3+", tag=1, ignorable=True)] = -1
    finalized_features: Annotated[list[FinalizedFeatureKey], Field("3+", tag=2, ignorable=True)] = []
    zk_migration_ready: Annotated[Bool, Field("3+", tag=3, ignorable=True)] = False

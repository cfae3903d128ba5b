"""UpdateFeatures: raise or lower finalized feature levels."""

from __future__ import annotations

from typing import Annotated

from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Bool, Int8, Int16, Int32, String


@request(57, "0-2", flexible="0+", listeners="broker controller")
class UpdateFeaturesRequest(Struct):
    class FeatureUpdateKey(Struct):
        feature: String = ""
        max_version_level: Int16 = 0
        allow_downgrade: Annotated[Bool, Field("0")] = False
        upgrade_type: Annotated[Int8, Field("1+")] = 1

    timeout_ms: Int32 = 60000
    feature_updates: list[FeatureUpdateKey] = []
    validate_only: Annotated[Bool, Field("1+")] = False


@response(57, "0-2", flexible="0+")
class UpdateFeaturesResponse(Struct):
    class UpdatableFeatureResult(Struct):
        feature: String = ""
        error_code: Int16 = 0
        error_message: String | None = ""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
    results: Annotated[list[UpdatableFeatureResult], Field("0-1", ignorable=True)] = []

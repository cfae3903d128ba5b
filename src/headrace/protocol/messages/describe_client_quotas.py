"""DescribeClientQuotas: quota values of the entities that match every component."""

from __future__ import annotations

from headrace.protocol.declare import Struct, request, response
from headrace.protocol.types import Bool, Float64, Int8, Int16, Int32, String


@request(48, "0-1", flexible="1+", listeners="broker")
class DescribeClientQuotasRequest(Struct):
    class ComponentData(Struct):
        entity_type: String = ""
        match_type: Int8 = 0
        match: String | None = ""

    components: list[ComponentData] = []
    strict: Bool = False


@response(48, "0-1", flexible="1+")
class DescribeClientQuotasResponse(Struct):
    class EntryData(Struct):
        entity: list[DescribeClientQuotasResponse.EntityData] = []
        values: list[DescribeClientQuotasResponse.ValueData] = []

    class EntityData(Struct):
        entity_type: String = ""
        entity_name: String | None = ""

    class ValueData(Struct):
        key: String = ""
        value: Float64 = 0.0

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""
    entries: list[EntryData] | None = []

"""AlterClientQuotas: set or remove quota values of a user, client id or address."""

from __future__ import annotations

from headrace.protocol.declare import Struct, request, response
from headrace.protocol.types import Bool, Float64, Int16, Int32, String


@request(49, "0-1", flexible="1+", listeners="broker controller")
class AlterClientQuotasRequest(Struct):
    class EntryData(Struct):
        entity: list[AlterClientQuotasRequest.EntityData] = []
        ops: list[AlterClientQuotasRequest.OpData] = []

    class EntityData(Struct):
        entity_type: String = ""
        entity_name: String | None = ""

    class OpData(Struct):
        key: String = ""
        value: Float64 = 0.0
        remove: Bool = False

    entries: list[EntryData] = []
    validate_only: Bool = False


@response(49, "0-1", flexible="1+")
class AlterClientQuotasResponse(Struct):
    class EntryData(Struct):
        error_code: Int16 = 0
        error_message: String | None = ""
        entity: list[AlterClientQuotasResponse.EntityData] = []

    class EntityData(Struct):
        entity_type: String = ""
        entity_name: String | None = ""

    throttle_time_ms: Int32 = 0
    entries: list[EntryData] = []

"""UnregisterBroker: forget a broker that will not come back."""

from __future__ import annotations

from headrace.protocol.declare import Struct, request, response
from headrace.protocol.types import Int16, Int32, String


@request(64, "0", flexible="0+", listeners="broker controller")
class UnregisterBrokerRequest(Struct):
    broker_id: Int32 = 0


@response(64, "0", flexible="0+")
class UnregisterBrokerResponse(Struct):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: String | None = ""

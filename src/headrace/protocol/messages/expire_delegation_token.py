"""ExpireDelegationToken: change when a token ends; a negative period ends it now."""

from __future__ import annotations

from headrace.protocol.declare import Struct, request, response
from headrace.protocol.types import Bytes, Int16, Int32, Int64


@request(40, "1-2", flexible="2+", listeners="broker controller")
class ExpireDelegationTokenRequest(Struct):
    hmac: Bytes = b""
    expiry_time_period_ms: Int64 = 0


@response(40, "1-2", flexible="2+")
class ExpireDelegationTokenResponse(Struct):
    error_code: Int16 = 0
    expiry_timestamp_ms: Int64 = 0
    throttle_time_ms: Int32 = 0

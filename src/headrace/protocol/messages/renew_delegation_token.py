"""RenewDelegationToken: extend a token up to its maximum age."""

from __future__ import annotations

from headrace.protocol.declare import Struct, request, response
from headrace.protocol.types import Bytes, Int16, Int32, Int64


@request(39, "1-2", flexible="2+", listeners="broker controller")
class RenewDelegationTokenRequest(Struct):
    hmac: Bytes = b""
    renew_period_ms: Int64 = 0


@response(39, "1-2", flexible="2+")
class RenewDelegationTokenResponse(Struct):
    error_code: Int16 = 0
    expiry_timestamp_ms: Int64 = 0
    throttle_time_ms: Int32 = 0

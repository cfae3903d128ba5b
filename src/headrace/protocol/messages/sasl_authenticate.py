"""SaslAuthenticate: one SASL token each way; v1 says how long the session may live."""

from __future__ import annotations

from typing import Annotated

from headrace.protocol.declare import Field, Struct, request, response
from headrace.protocol.types import Bytes, Int16, Int64, String


@request(36, "0-2", flexible="2+", listeners="broker controller")
class SaslAuthenticateRequest(Struct):
    auth_bytes: Bytes = b""


@response(36, "0-2", flexible="2+")
class SaslAuthenticateResponse(Struct):
    error_code: Int16 = 0
    error_message: String | None = ""
    auth_bytes: Bytes = b""
    session_lifetime_ms: Annotated[Int64, Field("1+", ignorable=True)] = 0
